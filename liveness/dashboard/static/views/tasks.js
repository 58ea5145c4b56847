// The list of reschedule tasks, which includes dead letters: tasks that failed too often.
import { discardTask, retryTask } from '../actions.js';
import { get } from '../api.js';
import { html } from '../html.js';
import { useListing } from '../listing.js';
import { Badge } from '../parts/badge.js';
import { Chips, listOf } from '../parts/chips.js';
import { Empty, Failure, Loading } from '../parts/notice.js';
import { Pager, usePages } from '../parts/pager.js';
import { ActivityLink, Name, Time, WorkerLink } from '../parts/text.js';
import { adjust } from '../route.js';
import { may } from '../session.js';
import { usePolling } from '../ticker.js';
import { SECOND, parseTime } from '../time.js';
import { taskState } from '../words.js';

const STATES = ['pending', 'retrying', 'dead lettered', 'done', 'discarded'];
const UNFINISHED = ['pending', 'retrying', 'dead lettered'];
const PAGE_SIZE = 100;
/** Tries of tasks write no events, so the list is loaded again at intervals. */
const ASK_EVERY_MS = 3 * SECOND;

export function Tasks({ ns, params }) {
  const chosen = listOf(params.state, STATES);
  const pages = usePages([ns, params.state]);
  const query = {
    namespace: ns,
    page_size: PAGE_SIZE,
    page_token: pages.token,
    states: chosen.map((state) => `TASK_STATE_${state.toUpperCase().replaceAll(' ', '_')}`),
  };
  const { answer, error, ask } = useListing(
    (signal) => get('/v1/tasks', query, { signal }),
    (event) => event.type === 'WorkerDeactivated' || event.workflow_id !== '',
    [ns, params.state, pages.token],
  );
  usePolling(() => ask(), ASK_EVERY_MS, []);
  const tasks = answer?.tasks ?? [];
  return html`<div class="stack">
    <header class="view-head"><h1 tabindex="-1">Tasks</h1><span class="mute">reschedules of activities that lost their worker</span></header>
    <div class="tools">
      <${Chips} label="States" choices=${STATES} chosen=${chosen} onChange=${(next) => adjust({ state: next.join(',') })} />
    </div>
    ${error && html`<${Failure} error=${error} />`}
    <section class="card flush">
      ${!answer && !error && html`<${Loading} />`}
      ${answer && tasks.length === 0 && html`<${Empty}>${chosen.length ? 'No task matches.' : 'Nothing is waiting: every lost activity has been moved on.'}<//>`}
      ${tasks.length > 0 && html`<div class="scroll-x"><table class="table cards">
        <thead><tr><th>activity</th><th>state</th><th>lost by</th><th>namespace</th><th class="num">tries</th><th>last error</th><th>since</th><th><span class="visually-hidden">actions</span></th></tr></thead>
        <tbody>${tasks.map((task) => html`<${Row} key=${task.task_id} task=${task} refresh=${ask} />`)}</tbody>
      </table></div>`}
    </section>
    <${Pager} pages=${pages} nextToken=${answer?.next_page_token} shown=${tasks.length} />
  </div>`;
}

function Row({ task, refresh }) {
  const state = taskState(task.state);
  return html`<tr>
    <td><${ActivityLink} ns=${task.namespace} id=${task.activity} /> <small class="mute">attempt ${task.activity.attempt}</small></td>
    <td data-label="state"><${Badge} word=${state} /></td>
    <td data-label="lost by"><${WorkerLink} ns=${task.namespace} name=${task.worker_instance_key} /></td>
    <td data-label="namespace"><${Name} plain>${task.namespace}<//></td>
    <td data-label="tries" class="num">${task.attempts}</td>
    <td data-label="last error"><${Name} plain>${task.last_error}<//></td>
    <td data-label="since"><${Time} ms=${parseTime(task.create_time)} ago /></td>
    <td class="right"><span class="buttons">
      ${may('operator', task.namespace) && UNFINISHED.includes(state) && html`<button type="button" class="button small" onClick=${() => retryTask(task, refresh)}>Retry</button>
        <button type="button" class="button small danger" onClick=${() => discardTask(task, refresh)}>Discard</button>`}
    </span></td>
  </tr>`;
}
