// The schedules of a namespace: when each fires next, when it fired last, and whether it is paused.
import { deleteSchedule, pauseSchedule, resumeSchedule, triggerSchedule } from '../actions.js';
import { get, inNamespace } from '../api.js';
import { html } from '../html.js';
import { useListing } from '../listing.js';
import { Badge } from '../parts/badge.js';
import { Empty, Failure, Loading } from '../parts/notice.js';
import { Pager, usePages } from '../parts/pager.js';
import { Name, Time } from '../parts/text.js';
import { activityHref, href } from '../route.js';
import { may } from '../session.js';
import { parseDuration, parseTime, showDuration, showTime, showTimeExactly } from '../time.js';
import { count } from '../words.js';

const PAGE_SIZE = 100;

export function Schedules({ ns }) {
  const pages = usePages([ns]);
  const { answer, error, ask } = useListing(
    (signal) => get(inNamespace(ns, 'schedules'), { page_size: PAGE_SIZE, page_token: pages.token }, { signal }),
    (event) => event.type.startsWith('Schedule'),
    [ns, pages.token],
  );
  const schedules = answer?.schedules ?? [];
  return html`<div class="stack">
    <header class="view-head"><h1 tabindex="-1">Schedules</h1><span class="mute">activities that are scheduled again and again</span></header>
    ${error && html`<${Failure} error=${error} />`}
    <section class="card flush">
      ${!answer && !error && html`<${Loading} />`}
      ${answer && schedules.length === 0 && html`<${Empty}>There is no schedule. <code>liveness schedules create</code> makes one.<//>`}
      ${schedules.length > 0 && html`<div class="scroll-x"><table class="table cards">
        <thead><tr><th>schedule</th><th>when</th><th>activity</th><th>next</th><th>last</th><th class="num">fired</th><th class="num">missed</th><th class="num">overlapped</th><th><span class="visually-hidden">actions</span></th></tr></thead>
        <tbody>${schedules.map((schedule) => html`<${Row} key=${schedule.schedule_id} ns=${ns} schedule=${schedule} refresh=${ask} />`)}</tbody>
      </table></div>`}
    </section>
    <${Pager} pages=${pages} nextToken=${answer?.next_page_token} shown=${schedules.length} />
  </div>`;
}

function Row({ ns, schedule, refresh }) {
  const { spec, firings } = schedule;
  const last = firings[0];
  const next = parseTime(schedule.next_time);
  return html`<tr>
    <td><${Name}>${schedule.schedule_id}<//>${spec.note && html` <${Name} plain>${spec.note}<//>`}</td>
    <td data-label="when"><${Name} plain>${when(spec)}<//></td>
    <td data-label="activity"><a href=${href('activities', { ns, queue: spec.activity.task_queue })}><bdi>${spec.activity.activity_type}</bdi></a></td>
    <td data-label="next">${schedule.paused ? html`<${Badge} word="paused" tone="warn" title=${schedule.pause_reason} />` : next === null ? 'never' : html`<time title=${showTimeExactly(next)}>${showTime(next)}</time>`}</td>
    <td data-label="last">${last && html`<a href=${activityHref(ns, last.id)}><${Time} ms=${parseTime(last.fire_time)} ago /></a>`}</td>
    <td data-label="fired" class="num">${count(schedule.fired)}</td>
    <td data-label="missed" class="num">${count(schedule.missed)}</td>
    <td data-label="overlapped" class="num">${count(schedule.overlapped)}</td>
    <td class="right"><span class="buttons">
      ${(may('operator', ns) || may('producer', ns)) && html`
        ${schedule.paused
          ? html`<button type="button" class="button small" onClick=${() => resumeSchedule(ns, schedule, refresh)}>Resume</button>`
          : html`<button type="button" class="button small" onClick=${() => pauseSchedule(ns, schedule, refresh)}>Pause</button>`}
        <button type="button" class="button small" onClick=${() => triggerSchedule(ns, schedule, refresh)}>Fire now</button>`}
      ${may('producer', ns) && html`<button type="button" class="button small danger" onClick=${() => deleteSchedule(ns, schedule, refresh)}>Delete</button>`}
    </span></td>
  </tr>`;
}

function when(spec) {
  if (spec.cron) return `${spec.cron} (${spec.time_zone})`;
  const offset = parseDuration(spec.offset);
  return `every ${showDuration(parseDuration(spec.every))}${offset ? `, ${showDuration(offset)} later` : ''}`;
}
