// The overview: alerts, numbers of workers, and charts of the last minutes.
import { pauseNamespace, releaseStorm, resumeNamespace } from '../actions.js';
import { useCell } from '../cell.js';
import { Chart } from '../charts.js';
import { Fleet, allNamespaces } from '../fleet.js';
import { html, useMemo } from '../html.js';
import { tryAgain } from '../live.js';
import { Unreachable } from '../api.js';
import { Alerts } from '../parts/alerts.js';
import { Badge } from '../parts/badge.js';
import { Empty, Loading } from '../parts/notice.js';
import { Name } from '../parts/text.js';
import { adjust, href } from '../route.js';
import { may } from '../session.js';
import { usePolling } from '../ticker.js';
import { MINUTE, SECOND, parseDuration, showDuration } from '../time.js';
import { brief, bytes, count, counted, percent } from '../words.js';

const RANGES = [5, 15, 30];
const ASK_EVERY_MS = 2 * SECOND;

export function Overview({ ns, params }) {
  const fleet = useMemo(() => (ns ? new Fleet(ns) : allNamespaces), [ns]);
  const summary = useCell(fleet.summary);
  usePolling((signal) => (ns ? refresh(fleet, signal) : undefined), ASK_EVERY_MS, [fleet]);
  const minutes = RANGES.includes(Number(params.range)) ? Number(params.range) : 15;
  if (!summary) return html`<${Loading} what="Loading the fleet" />`;
  const reload = () => fleet.ask().catch(() => {});
  const since = summary.time - minutes * MINUTE;
  const samples = summary.samples.filter((sample) => sample.time >= since);
  return html`<div class="stack">
    <header class="view-head">
      <h1 tabindex="-1">${ns ? html`Namespace <${Name} plain>${ns}<//>` : 'Fleet'}</h1>
      <div class="segments" role="group" aria-label="How far to look back">
        ${RANGES.map((range) => html`<button key=${range} type="button" aria-pressed=${range === minutes} onClick=${() => adjust({ range })}>${range} min</button>`)}
      </div>
    </header>
    <${Alerts} alerts=${summary.alerts} namespaces=${summary.namespaces} refresh=${reload} />
    <${Tiles} summary=${summary} samples=${samples} minutes=${minutes} ns=${ns} />
    <div class="charts">
      <${Charts} summary=${summary} samples=${samples} rangeMs=${minutes * MINUTE} />
      <${Queues} queues=${summary.queues} />
    </div>
    <${WaitingWork} queues=${summary.taskQueues} />
    <${Namespaces} namespaces=${summary.namespaces} refresh=${reload} />
  </div>`;
}

async function refresh(fleet, signal) {
  try {
    await fleet.ask(signal);
  } catch (error) {
    if (error instanceof Unreachable) tryAgain();
  }
}

function Tiles({ summary, samples, minutes, ns }) {
  const sum = (of) => samples.reduce((total, sample) => total + of(sample), 0);
  const recent = samples.slice(-Math.max(1, Math.round((10 * SECOND) / summary.intervalMs)));
  const rate = recent.reduce((total, sample) => total + sample.heartbeats, 0) / ((recent.length * summary.intervalMs) / SECOND || 1);
  const slowest = Math.max(0, ...recent.map((sample) => sample.p99));
  const now = totalsOf(summary.namespaces, ['active', 'inactive', 'suspects', 'dead', 'deaths', 'false_deaths', 'available_activities', 'unpolled_activities']);
  const tasks = totalsOf(summary.queues, ['pending', 'retrying', 'dead_lettered']);
  const unfinished = tasks.pending + tasks.retrying + tasks.dead_lettered;
  const expiries = sum((sample) => sample.expiries);
  const isDead = now.active === 0 && now.dead > 0;
  const oldest = Math.max(0, ...summary.namespaces.map(oldestOf));
  const waitsMost = ns || [...summary.namespaces].sort((a, b) => Number(b.available_activities) - Number(a.available_activities))[0]?.namespace;
  const isLate = summary.alerts.some((alert) => alert.kind === 'ALERT_KIND_LONG_WAIT');
  return html`<div class="tiles">
    <${Tile} label="Active" value=${brief(now.active)} tone=${isDead ? 'bad' : now.active ? 'good' : 'mute'} note=${isDead ? `${brief(now.dead)} died` : now.suspects ? counted(now.suspects, 'suspect') : 'none suspect'} href=${href('workers', { ns, state: isDead ? 'inactive' : 'active' })} />
    <${Tile} label="Inactive" value=${brief(now.inactive)} tone=${now.inactive ? 'bad' : 'mute'} note="may return" href=${href('workers', { ns, state: 'inactive' })} />
    <${Tile} label="Heartbeats" value=${tenths(rate)} unit="/s" tone=${isDead && !rate ? 'bad' : 'mute'} note=${slowest ? `p99 ${tenths(slowest)} ms` : 'none lately'} />
    <${Tile} label="Expiries" value=${brief(expiries)} tone=${expiries ? 'bad' : 'mute'} note=${`in ${minutes} min`} />
    <${Tile} label="Reschedules" value=${brief(sum((sample) => sample.reschedules))} note=${`in ${minutes} min`} />
    <${Tile} label="Waiting" value=${brief(now.available_activities)} tone=${now.unpolled_activities ? 'bad' : isLate ? 'warn' : 'mute'} note=${now.available_activities ? `oldest ${showDuration(oldest)}` : 'activities'} href=${href('activities', { ns: waitsMost, state: 'available' })} />
    <${Tile} label="Tasks" value=${brief(unfinished)} tone=${tasks.dead_lettered ? 'bad' : unfinished ? 'warn' : 'mute'} note=${tasks.dead_lettered ? counted(tasks.dead_lettered, 'dead letter') : 'unfinished'} href=${href('tasks', { ns })} />
    <${Tile} label="False deaths" value=${percent(now.false_deaths, now.deaths)} note=${`of ${counted(now.deaths, 'death')}`} />
    <${Tile} label="Shards" value=${`${summary.servingShards}/${summary.shards}`} tone=${summary.servingShards < summary.shards ? 'bad' : 'mute'} note=${`on ${counted(summary.nodes, 'node')}`} href=${href('nodes', { ns })} />
    ${summary.storage && html`<${Database} storage=${summary.storage} />`}
  </div>`;
}

/** Sums of fields; the API sends large numbers as text. */
function totalsOf(items, fields) {
  return Object.fromEntries(fields.map((field) => [field, items.reduce((total, item) => total + Number(item[field]), 0)]));
}

/** How long the oldest available activity of a namespace has waited. */
const oldestOf = (one) => Math.max(parseDuration(one.oldest_polled) || 0, parseDuration(one.oldest_unpolled) || 0);

const SOON_DAYS = 4;
const LATER_DAYS = 14;

function Database({ storage: { used, free, growth, days } }) {
  const notes = [];
  if (growth !== null) notes.push(`${growth < 0 ? '−' : '+'}${bytes(Math.abs(growth))} a day`);
  if (days !== null) notes.push(days < 365 ? `full in ${counted(Math.floor(days), 'day')}` : 'room for years');
  else if (free !== null) notes.push(`${bytes(free)} free`);
  const tone = days === null || days > LATER_DAYS ? 'mute' : days > SOON_DAYS ? 'warn' : 'bad';
  const [size, unit] = bytes(used).split(' ');
  return html`<${Tile} label="Database" value=${size} unit=${` ${unit}`} tone=${tone} note=${notes.join(', ') || 'growth not known yet'} />`;
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
  { label: 'waiting', tone: 'warn', of: (sample) => sample.available },
  { label: 'tasks', tone: 'mute', of: (sample) => sample.queueDepth },
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
    <${Chart} ...${given} title="Work" note=${`rescheduled ${each}; waiting activities; tasks of all namespaces`} series=${WORK} />`;
}

const LONGEST_LIST = 64;

function Queues({ queues }) {
  const total = (queue) => Number(queue.pending) + Number(queue.retrying) + Number(queue.dead_lettered);
  const longest = Math.max(1, ...queues.map(total));
  const shown = [...queues].sort((a, b) => total(b) - total(a)).slice(0, LONGEST_LIST);
  return html`<section class="card">
    <h3>Tasks per shard</h3>
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
          <span class="mute">${parseDuration(queue.oldest) ? `oldest ${showDuration(parseDuration(queue.oldest))}` : ''}${Number(queue.dead_lettered) > 0 && html` <span class="bad">${counted(queue.dead_lettered, 'dead letter')}</span>`}</span>
        </li>`,
      )}
    </ul>
  </section>`;
}

/** The task queues in which activities wait for a worker. */
function WaitingWork({ queues }) {
  if (!queues.length) return null;
  return html`<section class="card">
    <h3>Waiting work</h3>
    <div class="scroll-x"><table class="table">
      <thead><tr><th>task queue</th><th>namespace</th><th class="num">activities</th><th class="num">oldest</th><th>workers</th></tr></thead>
      <tbody>
        ${queues.slice(0, LONGEST_LIST).map(
          (queue) => html`<tr key=${`${queue.namespace} ${queue.task_queue} ${queue.unpolled}`}>
            <td><a class="link" href=${href('activities', { ns: queue.namespace, state: 'available', queue: queue.task_queue })}><${Name}>${queue.task_queue}<//></a></td>
            <td><${Name}>${queue.namespace}<//></td>
            <td class="num">${count(queue.available)}</td>
            <td class="num">${showDuration(parseDuration(queue.oldest))}</td>
            <td>${queue.unpolled ? html`<span class="bad">nobody polls</span>` : html`<span class="mute">polled</span>`}</td>
          </tr>`,
        )}
      </tbody>
    </table></div>
  </section>`;
}

function Namespaces({ namespaces, refresh }) {
  return html`<section class="card">
    <h3>Namespaces</h3>
    ${namespaces.length === 0
      ? html`<${Empty}>No worker has ever been here. Start one, and it shows up by itself.<//>`
      : html`<div class="scroll-x"><table class="table">
          <thead><tr><th>namespace</th><th class="num">active</th><th class="num">inactive</th><th class="num">deaths</th><th class="num" title="Deaths whose session came back: it had been alive">false</th><th class="num">quarantined</th><th class="num">waiting</th><th><span class="visually-hidden">actions</span></th></tr></thead>
          <tbody>
            ${namespaces.map(
              (one) => html`<tr key=${one.namespace}>
                <td><a class="link" href=${href('workers', { ns: one.namespace })}><${Name}>${one.namespace}<//></a> ${one.paused && html`<${Badge} word="paused" />`}</td>
                <td class="num"><span class=${Number(one.active) === 0 && Number(one.dead) > 0 ? 'bad' : ''}>${count(one.active)}</span>${Number(one.suspects) > 0 && html` <small class="warn">(${count(one.suspects)} suspect)</small>`}${Number(one.held_expiries) > 0 && html` <small class="warn">(${count(one.held_expiries)} held)</small>`}</td>
                <td class="num">${count(one.inactive)}</td>
                <td class="num">${count(one.deaths)}</td>
                <td class="num">${percent(one.false_deaths, one.deaths)}</td>
                <td class="num">${count(one.quarantined_activities)}</td>
                <td class="num"><span class=${Number(one.unpolled_activities) > 0 ? 'bad' : ''}>${count(one.available_activities)}</span></td>
                <td class="right">
                  ${may('operator', one.namespace) && Number(one.held_expiries) > 0 && html`<button type="button" class="button small" onClick=${() => releaseStorm(one.namespace, Number(one.held_expiries), refresh)}>Release</button> `}
                  ${may('operator', one.namespace) && (one.paused
                    ? html`<button type="button" class="button small" onClick=${() => resumeNamespace(one.namespace, refresh)}>Resume all</button>`
                    : html`<button type="button" class="button small" onClick=${() => pauseNamespace(one.namespace, refresh)}>Pause all</button>`)}
                </td>
              </tr>`,
            )}
          </tbody>
        </table></div>`}
  </section>`;
}
