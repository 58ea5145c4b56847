// The list of a namespace's activities.
import { cancelActivity, retryActivity } from '../actions.js';
import { get, inNamespace } from '../api.js';
import { html, useEffect, useState } from '../html.js';
import { Badge } from '../parts/badge.js';
import { Chips, listOf } from '../parts/chips.js';
import { Empty, Failure, Loading } from '../parts/notice.js';
import { Pager, usePages } from '../parts/pager.js';
import { ActivityLink, Name, Time, WorkerLink } from '../parts/text.js';
import { useListing } from '../listing.js';
import { adjust } from '../route.js';
import { may } from '../session.js';
import { parseTime } from '../time.js';
import { activityState } from '../words.js';

const STATES = ['available', 'waiting', 'started', 'completed', 'failed', 'cancelled', 'quarantined', 'released', 'handed on'];
export const RETRYABLE = ['quarantined', 'failed'];
export const FINISHED = ['completed', 'failed', 'cancelled', 'handed on'];
const PAGE_SIZE = 100;
const constant = (state) => `ACTIVITY_STATE_${state.toUpperCase().replaceAll(' ', '_')}`;

export function Activities({ ns, params }) {
  const chosen = listOf(params.state, STATES);
  const filter = [ns, params.state, params.queue, params.worker, params.type, params.id];
  const pages = usePages(filter);
  const query = {
    page_size: PAGE_SIZE,
    page_token: pages.token,
    'filter.states': chosen.map(constant),
    'filter.task_queue': params.queue,
    'filter.worker_instance_key': params.worker,
    'filter.activity_type': params.type,
    'filter.workflow_id_prefix': params.id,
  };
  const { answer, error, ask } = useListing(
    (signal) => get(inNamespace(ns, 'activities'), query, { signal }),
    (event) => event.workflow_id !== '',
    [...filter, pages.token],
  );
  const activities = answer?.activities ?? [];
  return html`<div class="stack">
    <header class="view-head"><h1 tabindex="-1">Activities</h1></header>
    <div class="tools">
      <${Field} label="Workflow begins with" name="id" value=${params.id} type="search" />
      <${Field} label="Type" name="type" value=${params.type} />
      <${Field} label="Task queue" name="queue" value=${params.queue} type="search" />
      <${Field} label="Held by worker" name="worker" value=${params.worker} />
      <${Chips} label="States" choices=${STATES} chosen=${chosen} onChange=${(next) => adjust({ state: next.join(',') })} />
    </div>
    ${error && html`<${Failure} error=${error} />`}
    <section class="card flush">
      ${!answer && !error && html`<${Loading} />`}
      ${answer && activities.length === 0 && html`<${Empty}>No activity matches.<//>`}
      ${activities.length > 0 && html`<div class="scroll-x"><table class="table cards">
        <thead><tr><th>activity</th><th>state</th><th>held by</th><th>task queue</th><th>type</th><th class="num">attempt</th><th class="num">failures</th><th>since</th><th><span class="visually-hidden">actions</span></th></tr></thead>
        <tbody>${activities.map((activity) => html`<${Row} key=${JSON.stringify(activity.id)} ns=${ns} activity=${activity} refresh=${ask} />`)}</tbody>
      </table></div>`}
    </section>
    <${Pager} pages=${pages} nextToken=${answer?.next_page_token} shown=${activities.length} />
  </div>`;
}

function Row({ ns, activity, refresh }) {
  const state = activityState(activity.state);
  return html`<tr>
    <td><${ActivityLink} ns=${ns} id=${activity.id} /></td>
    <td data-label="state"><${Badge} word=${state} title=${activity.last_failure} /></td>
    <td data-label="held by"><${WorkerLink} ns=${ns} name=${activity.worker_instance_key} /></td>
    <td data-label="queue"><${Name} plain>${activity.task_queue}<//></td>
    <td data-label="type"><${Name} plain>${activity.activity_type}<//></td>
    <td data-label="attempt" class="num">${activity.attempt}</td>
    <td data-label="failures" class="num">${activity.failures}</td>
    <td data-label="since"><${Time} ms=${parseTime(activity.since)} ago /></td>
    <td class="right"><${ActivityButtons} ns=${ns} id=${activity.id} state=${state} refresh=${refresh} small /></td>
  </tr>`;
}

export function ActivityButtons({ ns, id, state, refresh, small = false }) {
  const look = small ? 'button small' : 'button';
  return html`<span class="buttons">
    ${may('operator', ns) && RETRYABLE.includes(state) && html`<button type="button" class=${look} onClick=${() => retryActivity(ns, id, refresh)}>Retry</button>`}
    ${may('producer', ns) && !FINISHED.includes(state) && html`<button type="button" class=${`${look} danger`} onClick=${() => cancelActivity(ns, id, refresh)}>Cancel</button>`}
  </span>`;
}

/** A filter for whole names that the server applies; it takes effect with Enter or when the field loses the focus. */
function Field({ label, name, value = '', type = 'text' }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  const apply = () => text !== value && adjust({ [name]: text.trim() });
  return html`<label class="filter"><span>${label}</span>
    <input type=${type} value=${text} placeholder="any" autocomplete="off" spellcheck=${false} onInput=${(event) => setText(event.target.value)} onBlur=${apply}
      onKeyDown=${(event) => event.key === 'Enter' && apply()} />
  </label>`;
}
