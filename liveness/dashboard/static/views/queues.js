// The task queues of a namespace: what waits, who polls, how fast they move.
import { get, inNamespace } from '../api.js';
import { html, useState } from '../html.js';
import { useListing } from '../listing.js';
import { Empty, Failure, Loading } from '../parts/notice.js';
import { href } from '../route.js';
import { usePolling } from '../ticker.js';
import { SECOND, parseDuration, showDuration } from '../time.js';
import { count } from '../words.js';

/** Rates and ages change without an event. */
const ASK_EVERY_MS = 5 * SECOND;
const COLUMNS = [
  ['task_queue', 'task queue'],
  ['available', 'available'],
  ['oldest', 'oldest'],
  ['waiting', 'waiting'],
  ['held', 'held'],
  ['pollers', 'pollers'],
  ['added_per_minute', 'added / min'],
  ['started_per_minute', 'started / min'],
  ['completed_per_minute', 'completed / min'],
  ['failed_per_minute', 'failed / min'],
];

export function Queues({ ns }) {
  const [order, setOrder] = useState('task_queue');
  const { answer, error, ask } = useListing(
    (signal) => get(inNamespace(ns, 'task-queues'), {}, { signal }),
    (event) => event.workflow_id !== '',
    [ns],
  );
  usePolling(() => ask(), ASK_EVERY_MS, []);
  const size = (queue) => (order === 'oldest' ? (parseDuration(queue.oldest) ?? -1) : Number(queue[order]));
  const queues = [...(answer?.task_queues ?? [])];
  if (order !== 'task_queue') queues.sort((one, other) => size(other) - size(one));
  return html`<div class="stack">
    <header class="view-head"><h1 tabindex="-1">Queues</h1><span class="mute">activities by task queue</span></header>
    ${error && html`<${Failure} error=${error} />`}
    <section class="card flush">
      ${!answer && !error && html`<${Loading} />`}
      ${answer && queues.length === 0 && html`<${Empty}>No task queue has activities or polls.<//>`}
      ${queues.length > 0 && html`<div class="scroll-x"><table class="table cards">
        <thead><tr>${COLUMNS.map(([name, label]) => html`<th key=${name} class=${name === 'task_queue' ? '' : 'num'} aria-sort=${order === name ? (name === 'task_queue' ? 'ascending' : 'descending') : undefined}>
          <button type="button" title=${`Sort by ${label}`} onClick=${() => setOrder(name)}>${label}</button></th>`)}</tr></thead>
        <tbody>${queues.map((queue) => html`<${Row} key=${queue.task_queue} ns=${ns} queue=${queue} />`)}</tbody>
      </table></div>`}
    </section>
    <${Limits} ns=${ns} />
  </div>`;
}

/** Nothing, unless a workflow has a concurrency limit. */
function Limits({ ns }) {
  const { answer, error, ask } = useListing(
    (signal) => get(inNamespace(ns, 'concurrency-limits'), { page_size: 1000 }, { signal }),
    (event) => event.workflow_id !== '' || event.type.startsWith('ConcurrencyLimit'),
    [ns],
  );
  usePolling(() => ask(), ASK_EVERY_MS, []);
  const limits = answer?.limits ?? [];
  if (error) return html`<${Failure} error=${error} />`;
  if (limits.length === 0) return null;
  return html`<section class="card flush"><h2>Concurrency limits</h2><div class="scroll-x"><table class="table cards">
    <thead><tr><th>workflow</th><th class="num">running</th><th class="num">limit</th><th class="num">waiting</th></tr></thead>
    <tbody>${limits.map((limit) => html`<tr key=${limit.workflow_id}>
      <td><bdi>${limit.workflow_id}</bdi></td>
      <td data-label="running" class="num">${limit.running === undefined ? 'unknown' : count(limit.running)}</td>
      <td data-label="limit" class="num">${count(limit.maximum)}</td>
      <td data-label="waiting" class="num">${limit.waiting === undefined ? 'unknown' : count(limit.waiting)}</td>
    </tr>`)}</tbody>
  </table></div></section>`;
}

function Row({ ns, queue }) {
  const oldest = parseDuration(queue.oldest);
  return html`<tr>
    <td><a href=${href('activities', { ns, queue: queue.task_queue })}><bdi>${queue.task_queue}</bdi></a></td>
    <td data-label="available" class="num">${count(queue.available)}</td>
    <td data-label="oldest" class="num">${oldest !== null && showDuration(oldest)}</td>
    <td data-label="waiting" class="num">${count(queue.waiting)}</td>
    <td data-label="held" class="num">${count(queue.held)}</td>
    <td data-label="pollers" class="num">${count(queue.pollers)}</td>
    <td data-label="added / min" class="num">${count(queue.added_per_minute)}</td>
    <td data-label="started / min" class="num">${count(queue.started_per_minute)}</td>
    <td data-label="completed / min" class="num">${count(queue.completed_per_minute)}</td>
    <td data-label="failed / min" class="num">${count(queue.failed_per_minute)}</td>
  </tr>`;
}
