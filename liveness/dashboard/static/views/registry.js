// The registered components of a namespace: worker pools, servers, brokers.
import { get, inNamespace } from '../api.js';
import { html } from '../html.js';
import { useListing } from '../listing.js';
import { Badge } from '../parts/badge.js';
import { Chips, listOf } from '../parts/chips.js';
import { Empty, Failure, Loading } from '../parts/notice.js';
import { Name, Time } from '../parts/text.js';
import { adjust, workerHref } from '../route.js';
import { usePolling } from '../ticker.js';
import { SECOND, parseTime } from '../time.js';
import { count, counted } from '../words.js';

/** Heartbeats are no events, so the list is loaded again at intervals. */
const ASK_EVERY_MS = 3 * SECOND;
const PAGE_SIZE = 1_000;
const ENTRIES_MAX = 5_000;
const STALE = 'stale';

export function NoRegistry() {
  return html`<div class="notice explained">
    <p>No component is registered here. This registers one, and it shows up by itself:</p>
    <p><code>liveness registry register broker:nats-1 --uri nats://host:4222 --interval 15s</code></p>
  </div>`;
}

export function Registry({ ns, params }) {
  const { answer, error, ask } = useListing(
    (signal) => load(ns, signal),
    (event) => event.namespace === ns,
    [ns],
  );
  usePolling(() => ask(), ASK_EVERY_MS, [ns]);
  const entries = answer?.entries ?? [];
  const kinds = inOrder(entries.map((entry) => entry.kind));
  const statuses = [...inOrder(entries.map((entry) => entry.status)), STALE];
  const chosenKinds = listOf(params.kind, kinds);
  const chosen = listOf(params.status, statuses);
  const matches = (entry) =>
    (!chosenKinds.length || chosenKinds.includes(entry.kind)) &&
    (!chosen.length || chosen.includes(entry.status) || (chosen.includes(STALE) && entry.stale));
  const shown = entries.filter(matches);
  return html`<div class="stack">
    <header class="view-head"><h1 tabindex="-1">Registry</h1>
      <span class="mute" role="status" aria-live="polite">${answer ? counted(entries.length, 'component') : ''}${answer?.cut ? ` · the first ${count(ENTRIES_MAX)} only` : ''}</span>
    </header>
    ${entries.length > 0 && html`<div class="tools">
      <${Chips} label="Kinds" choices=${kinds} chosen=${chosenKinds} counts=${countsOf(entries, (entry) => entry.kind)} onChange=${(next) => adjust({ kind: next.join(',') })} />
      <${Chips} label="Statuses" choices=${statuses} chosen=${chosen} counts=${{ ...countsOf(entries, (entry) => entry.status), [STALE]: entries.filter((entry) => entry.stale).length }} onChange=${(next) => adjust({ status: next.join(',') })} />
    </div>`}
    ${error && html`<${Failure} error=${error} />`}
    ${!answer && !error && html`<${Loading} />`}
    ${answer && entries.length === 0 && html`<section class="card"><${NoRegistry} /></section>`}
    ${entries.length > 0 && shown.length === 0 && html`<section class="card"><${Empty}>No component matches.<//></section>`}
    ${shown.length > 0 && html`<section class="card flush" aria-label="Components">
      <div class="scroll-x"><table class="table cards">
        <thead><tr><th>component</th><th>kind</th><th>status</th><th class="num">capacity</th><th>heard of</th><th>process</th><th>replicas</th><th>where</th><th>labels</th></tr></thead>
        <tbody>${shown.map((entry) => html`<${Row} key=${entry.worker_instance_key} ns=${ns} entry=${entry} />`)}</tbody>
      </table></div>
    </section>`}
  </div>`;
}

async function load(ns, signal) {
  const entries = [];
  let token = '';
  do {
    const page = await get(inNamespace(ns, 'registry'), { page_size: PAGE_SIZE, page_token: token }, { signal });
    entries.push(...page.entries);
    token = page.next_page_token;
  } while (token && entries.length < ENTRIES_MAX);
  return { entries, cut: token !== '' };
}

const inOrder = (words) => [...new Set(words)].sort();

function countsOf(entries, wordOf) {
  const counts = Object.create(null); // components choose their own words
  for (const entry of entries) counts[wordOf(entry)] = (counts[wordOf(entry)] ?? 0) + 1;
  return counts;
}

const processOf = ({ host_name: host, process_id: process }) => (host || process ? `${host}:${process}` : '');

function Row({ ns, entry }) {
  const late = entry.stale && entry.status !== 'offline';
  return html`<tr>
    <td><a class="link" href=${workerHref(ns, entry.worker_instance_key)} title=${entry.worker_instance_key}><${Name}>${entry.name}<//></a></td>
    <td data-label="kind"><${Name} plain>${entry.kind}<//></td>
    <td data-label="status" class="whole"><${Badge} word=${entry.status} />${late && html` <${Badge} word="stale" title="Not heard of for two expected intervals" />`}</td>
    <td data-label="capacity" class="num">${entry.capacity === undefined || entry.capacity === null ? html`<span class="mute">–</span>` : count(entry.capacity)}</td>
    <td data-label="heard of"><${Time} ms=${parseTime(entry.last_seen_time)} ago /></td>
    <td data-label="process"><${Name} plain>${processOf(entry)}<//></td>
    <td data-label="replicas" class="whole"><${Replicas} replicas=${entry.replicas} /></td>
    <td data-label="where" class="whole"><${Name} plain>${entry.uri}<//></td>
    <td data-label="labels" class="whole"><${Name} plain>${Object.entries(entry.labels).sort().map(([name, value]) => `${name}=${value}`).join(' ')}<//></td>
  </tr>`;
}

/** Other processes that registered the same name, and hold no lease. */
function Replicas({ replicas }) {
  if (!replicas.length) return html`<span class="mute">–</span>`;
  return html`<${Badge} word=${counted(replicas.length, 'replica')} tone="warn" title="Other processes under the same name, without a lease" />
    ${' '}<${Name} plain>${replicas.map((replica) => processOf(replica) || replica.session_id).join(', ')}<//>`;
}
