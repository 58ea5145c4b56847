// The units of work of a namespace and how far they are.
import { forgetUnit } from '../actions.js';
import { get, inNamespace } from '../api.js';
import { html } from '../html.js';
import { useListing } from '../listing.js';
import { Chips, listOf } from '../parts/chips.js';
import { Empty, Failure, Loading } from '../parts/notice.js';
import { Pager, usePages } from '../parts/pager.js';
import { Name, Time, WorkerLink } from '../parts/text.js';
import { adjust } from '../route.js';
import { may } from '../session.js';
import { usePolling } from '../ticker.js';
import { SECOND, parseTime } from '../time.js';
import { count } from '../words.js';

const STATES = ['failing'];
const PAGE_SIZE = 100;
/** Rates change without an event. */
const ASK_EVERY_MS = 5 * SECOND;

export function Progress({ ns, params }) {
  const chosen = listOf(params.state, STATES);
  const pages = usePages([ns, params.state]);
  const query = { page_size: PAGE_SIZE, page_token: pages.token, failing: chosen.includes('failing') };
  const { answer, error, ask } = useListing(
    (signal) => get(inNamespace(ns, 'progress'), query, { signal }),
    (event) => event.type === 'ProgressReported' || event.type === 'ProgressForgotten',
    [ns, params.state, pages.token],
  );
  usePolling(() => ask(), ASK_EVERY_MS, []);
  const units = answer?.units ?? [];
  return html`<div class="stack">
    <header class="view-head"><h1 tabindex="-1">Progress</h1><span class="mute">of units of work, over all workers</span></header>
    <div class="tools">
      <${Chips} label="Only" choices=${STATES} chosen=${chosen} onChange=${(next) => adjust({ state: next.join(',') })} />
    </div>
    ${error && html`<${Failure} error=${error} />`}
    <section class="card flush">
      ${!answer && !error && html`<${Loading} />`}
      ${answer && units.length === 0 && html`<${Empty}>${chosen.length ? 'No unit is failing.' : 'No worker has reported progress here.'}<//>`}
      ${units.length > 0 && html`<div class="scroll-x"><table class="table cards">
        <thead><tr><th>unit</th><th class="num">successes</th><th class="num">last minute</th><th class="num">last hour</th><th>last success</th><th class="num">errors</th><th>last error</th><th><span class="visually-hidden">actions</span></th></tr></thead>
        <tbody>${units.map((unit) => html`<${Row} key=${unit.unit} ns=${ns} unit=${unit} refresh=${ask} />`)}</tbody>
      </table></div>`}
    </section>
    <${Pager} pages=${pages} nextToken=${answer?.next_page_token} shown=${units.length} />
  </div>`;
}

function Row({ ns, unit, refresh }) {
  return html`<tr>
    <td><${Name}>${unit.unit}<//></td>
    <td data-label="successes" class="num">${count(unit.successes)}</td>
    <td data-label="last minute" class="num">${count(unit.successes_per_minute)}</td>
    <td data-label="last hour" class="num">${count(unit.successes_per_hour)}</td>
    <td data-label="last success" class="whole">${unit.last_success_time && html`<${Time} ms=${parseTime(unit.last_success_time)} ago /> by <${WorkerLink} ns=${ns} name=${unit.last_success_worker} />`}</td>
    <td data-label="errors" class="num">${count(unit.errors)}</td>
    <td data-label="last error" class="whole">${unit.last_error_time && html`<${Time} ms=${parseTime(unit.last_error_time)} ago /> <${Name} plain>${unit.last_error}<//>`}</td>
    <td class="right"><span class="buttons">
      ${may('operator', ns) && html`<button type="button" class="button small danger" onClick=${() => forgetUnit(ns, unit, refresh)}>Forget</button>`}
    </span></td>
  </tr>`;
}
