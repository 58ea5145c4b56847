// The overview: alerts, numbers of workers, and charts of the last minutes.
import { pauseNamespace, releaseStorm, resumeNamespace } from '../actions.js';
import { useCell } from '../cell.js';
import { Chart } from '../charts.js';
import { Fleet, allNamespaces } from '../fleet.js';
import { html, useMemo } from '../html.js';
import { Icon } from '../icons.js';
import { tryAgain } from '../live.js';
import { Unreachable } from '../api.js';
import { Badge } from '../parts/badge.js';
import { Empty, Loading } from '../parts/notice.js';
import { Name } from '../parts/text.js';
import { adjust, href } from '../route.js';
import { usePolling } from '../ticker.js';
import { MINUTE, SECOND, parseDuration, showDuration } from '../time.js';
import { brief, count, counted, percent } from '../words.js';

const RANGES = [5, 15, 30];
const ASK_EVERY_MS = 2 * SECOND;

export function Overview({ ns, params }) {
  const fleet = useMemo(() => (ns ? new Fleet(ns) : allNamespaces), [ns]);
  const summary = useCell(fleet.summary);
  usePolling((signal) => (ns ? refresh(fleet, signal) : undefined), ASK_EVERY_MS, [fleet]);
  const minutes = RANGES.includes(Number(params.range)) ? Number(params.range) : 15;
  if (!summary) return html`<${Loading} what="Loading the fleet" />`;
  const since = summary.time - minutes * MINUTE;
  const samples = summary.samples.filter((sample) => sample.time >= since);
  return html`<div class="stack">
    <header class="view-head">
      <h1 tabindex="-1">${ns ? html`Namespace <${Name} plain>${ns}<//>` : 'Fleet'}</h1>
      <div class="segments" role="group" aria-label="How far to look back">
        ${RANGES.map((range) => html`<button key=${range} type="button" aria-pressed=${range === minutes} onClick=${() => adjust({ range })}>${range} min</button>`)}
      </div>
    </header>
    <${Alerts} alerts=${summary.alerts} />
    <${Tiles} summary=${summary} samples=${samples} minutes=${minutes} ns=${ns} />
    <div class="charts">
      <${Charts} summary=${summary} samples=${samples} rangeMs=${minutes * MINUTE} />
      <${Queues} queues=${summary.queues} />
    </div>
    <${Namespaces} namespaces=${summary.namespaces} refresh=${() => fleet.ask().catch(() => {})} />
  </div>`;
}

async function refresh(fleet, signal) {
  try {
    await fleet.ask(signal);
  } catch (error) {
    if (error instanceof Unreachable) tryAgain();
  }
}

const ALERTS = {
  ALERT_KIND_STORM: { tone: 'bad', view: 'workers', params: { state: 'inactive' } },
  ALERT_KIND_QUARANTINE: { tone: 'bad', view: 'activities', params: { state: 'quarantined' } },
  ALERT_KIND_DEAD_LETTERS: { tone: 'bad', view: 'tasks', params: { state: 'dead lettered' } },
  ALERT_KIND_UNSERVED_SHARDS: { tone: 'bad', view: 'nodes', params: {} },
  ALERT_KIND_STALL: { tone: 'warn', view: 'nodes', params: {} },
  ALERT_KIND_RELAY: { tone: 'warn', view: 'nodes', params: {} },
};

function Alerts({ alerts }) {
  if (!alerts.length) return null;
  return html`<div class="alerts" role="region" aria-label="What needs attention">
    ${alerts.map((alert, at) => {
      const { tone, view, params } = ALERTS[alert.kind] ?? { tone: 'warn', view: 'overview', params: {} };
      return html`<a key=${`${alert.kind} ${alert.namespace} ${at}`} class=${`alert ${tone}`} href=${href(view, { ns: alert.namespace, ...params })}>
        <${Icon} name="warning" /><bdi>${alert.message}</bdi>${alert.namespace && html`<span class="alert-ns"><${Name}>${alert.namespace}<//></span>`}
      </a>`;
    })}
  </div>`;
}

function Tiles({ summary, samples, minutes, ns }) {
  const last = samples.at(-1) ?? summary.samples.at(-1);
  const sum = (of) => samples.reduce((total, sample) => total + of(sample), 0);
  const recent = samples.slice(-Math.max(1, Math.round((10 * SECOND) / summary.intervalMs)));
  const rate = recent.reduce((total, sample) => total + sample.heartbeats, 0) / ((recent.length * summary.intervalMs) / SECOND || 1);
  const slowest = Math.max(0, ...recent.map((sample) => sample.p99));
  const now = summary.namespaces.reduce((all, one) => ({
    active: all.active + Number(one.active), inactive: all.inactive + Number(one.inactive), suspects: all.suspects + Number(one.suspects),
    deaths: all.deaths + Number(one.deaths), falseDeaths: all.falseDeaths + Number(one.false_deaths),
  }), { active: 0, inactive: 0, suspects: 0, deaths: 0, falseDeaths: 0 }); // prettier-ignore
  const depth = last?.queueDepth ?? 0;
  const expiries = sum((sample) => sample.expiries);
  return html`<div class="tiles">
    <${Tile} label="Active" value=${brief(now.active)} tone="good" note=${now.suspects ? counted(now.suspects, 'suspect') : 'none suspect'} href=${href('workers', { ns, state: 'active' })} />
    <${Tile} label="Inactive" value=${brief(now.inactive)} tone=${now.inactive ? 'bad' : 'mute'} note="may come back" href=${href('workers', { ns, state: 'inactive' })} />
    <${Tile} label="Heartbeats" value=${tenths(rate)} unit="/s" note=${slowest ? `p99 ${tenths(slowest)} ms` : 'none lately'} />
    <${Tile} label="Expiries" value=${brief(expiries)} tone=${expiries ? 'bad' : 'mute'} note=${`in ${minutes} min`} />
    <${Tile} label="Reschedules" value=${brief(sum((sample) => sample.reschedules))} note=${`in ${minutes} min`} />
    <${Tile} label="Queue" value=${brief(depth)} tone=${depth ? 'warn' : 'mute'} note="unfinished tasks" href=${href('tasks', { ns })} />
    <${Tile} label="False deaths" value=${percent(now.falseDeaths, now.deaths)} note=${`of ${counted(now.deaths, 'death')}`} />
    <${Tile} label="Shards" value=${`${summary.servingShards}/${summary.shards}`} tone=${summary.servingShards < summary.shards ? 'bad' : 'mute'} note=${`on ${counted(summary.nodes, 'node')}`} href=${href('nodes', { ns })} />
  </div>`;
}

const tenths = (value) => (value < 10 ? String(Math.round(value * 10) / 10) : brief(value));

function Tile({ label, value, unit, note, tone = 'mute', href: to }) {
  const inner = html`<span class="tile-label">${label}</span>
    <span class=${`tile-value ${tone}`}>${value}${unit && html`<small>${unit}</small>`}</span>
    <span class="tile-note">${note}</span>`;
  return to ? html`<a class="card tile" href=${to}>${inner}</a>` : html`<div class="card tile">${inner}</div>`;
}

const STATES = [
  { label: 'active', tone: 'good', of: (sample) => sample.active, area: true },
  { label: 'inactive', tone: 'bad', of: (sample) => sample.inactive, area: true },
  { label: 'suspect', tone: 'warn', of: (sample) => sample.suspects },
  { label: 'cleaned up', tone: 'mute', of: (sample) => sample.cleanedUp, quiet: true },
];
const LATENCY = [
  { label: 'p50', tone: 'info', of: (sample) => sample.p50 },
  { label: 'p99', tone: 'warn', of: (sample) => sample.p99 },
];
const CHANGES = [
  { label: 'expired', tone: 'bad', of: (sample) => sample.expiries, bars: true },
  { label: 'registered', tone: 'good', of: (sample) => sample.registrations, quiet: true },
  { label: 'came back', tone: 'info', of: (sample) => sample.resurrections },
];
const WORK = [
  { label: 'rescheduled', tone: 'info', of: (sample) => sample.reschedules, bars: true },
  { label: 'queue', tone: 'warn', of: (sample) => sample.queueDepth },
];

function Charts({ summary, samples, rangeMs }) {
  const seconds = summary.intervalMs / SECOND;
  const beats = useMemo(() => [
    { label: 'accepted', tone: 'accent', of: (sample) => sample.heartbeats / seconds, area: true },
    { label: 'refused', tone: 'bad', of: (sample) => sample.refused / seconds },
  ], [seconds]); // prettier-ignore
  const given = { samples, rangeMs, intervalMs: summary.intervalMs };
  const each = `every ${showDuration(summary.intervalMs)}`;
  return html`<${Chart} ...${given} title="Workers by state" series=${STATES} />
    <${Chart} ...${given} title="Heartbeats" note="per second" series=${beats} integers=${false} show=${tenths} />
    <${Chart} ...${given} title="Heartbeat latency" note="to the durable answer, ms; all namespaces" series=${LATENCY} integers=${false} show=${tenths} />
    <${Chart} ...${given} title="Leases" note=${each} series=${CHANGES} />
    <${Chart} ...${given} title="Reschedules and queue" note=${each} series=${WORK} />`;
}

const LONGEST_LIST = 64;

function Queues({ queues }) {
  const total = (queue) => Number(queue.pending) + Number(queue.retrying) + Number(queue.dead_lettered);
  const longest = Math.max(1, ...queues.map(total));
  const shown = [...queues].sort((a, b) => total(b) - total(a)).slice(0, LONGEST_LIST);
  return html`<section class="card">
    <h3>Queue depth per shard</h3>
    ${shown.length === 0 && html`<${Empty}>All queues are empty.<//>`}
    <ul class="queues">
      ${shown.map(
        (queue) => html`<li key=${queue.shard_id}>
          <span class="mute">shard ${queue.shard_id}</span>
          <span class="queue-bar">
            ${[['pending', 'info'], ['retrying', 'warn'], ['dead_lettered', 'bad']].map(
              ([part, tone]) => html`<i key=${part} class=${`tone-${tone}`} style=${{ width: `${(100 * Number(queue[part])) / longest}%` }} title=${`${count(queue[part])} ${part.replace('_', '-')}`}></i>`,
            )}
          </span>
          <b>${count(total(queue))}</b>
          <span class="mute">${parseDuration(queue.oldest) ? `oldest ${showDuration(parseDuration(queue.oldest))}` : ''}</span>
        </li>`,
      )}
    </ul>
  </section>`;
}

function Namespaces({ namespaces, refresh }) {
  return html`<section class="card">
    <h3>Namespaces</h3>
    ${namespaces.length === 0
      ? html`<${Empty}>No worker has ever been here. Start one, and it shows up by itself.<//>`
      : html`<div class="scroll-x"><table class="table">
          <thead><tr><th>namespace</th><th class="num">active</th><th class="num">inactive</th><th class="num">deaths</th><th class="num" title="Deaths whose session came back: it had been alive">false</th><th class="num">quarantined</th><th><span class="visually-hidden">actions</span></th></tr></thead>
          <tbody>
            ${namespaces.map(
              (one) => html`<tr key=${one.namespace}>
                <td><a class="link" href=${href('workers', { ns: one.namespace })}><${Name}>${one.namespace}<//></a> ${one.paused && html`<${Badge} word="paused" />`}</td>
                <td class="num">${count(one.active)}${Number(one.suspects) > 0 && html` <small class="warn">(${count(one.suspects)} suspect)</small>`}${Number(one.held_expiries) > 0 && html` <small class="warn">(${count(one.held_expiries)} held)</small>`}</td>
                <td class="num">${count(one.inactive)}</td>
                <td class="num">${count(one.deaths)}</td>
                <td class="num">${percent(one.false_deaths, one.deaths)}</td>
                <td class="num">${count(one.quarantined_activities)}</td>
                <td class="right">
                  ${Number(one.held_expiries) > 0 && html`<button type="button" class="button small" onClick=${() => releaseStorm(one.namespace, Number(one.held_expiries), refresh)}>Release</button> `}
                  ${one.paused
                    ? html`<button type="button" class="button small" onClick=${() => resumeNamespace(one.namespace, refresh)}>Resume all</button>`
                    : html`<button type="button" class="button small" onClick=${() => pauseNamespace(one.namespace, refresh)}>Pause all</button>`}
                </td>
              </tr>`,
            )}
          </tbody>
        </table></div>`}
  </section>`;
}
