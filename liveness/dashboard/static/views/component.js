// One component: its state over time, its output, its history and what is known about it.
import { orderComponents } from '../component_actions.js';
import { HealthCharts } from '../component_charts.js';
import { Log, useLog } from '../component_log.js';
import { get, inNamespace } from '../api.js';
import { dataOf, sentenceOf } from '../event_words.js';
import { useHistory } from '../history.js';
import { html, useEffect, useMemo, useState } from '../html.js';
import { Icon } from '../icons.js';
import { Badge } from '../parts/badge.js';
import { MetricCharts } from '../parts/metric_charts.js';
import { Empty, Failure, Loading } from '../parts/notice.js';
import { Elapsed, Name, Time } from '../parts/text.js';
import { href, workerHref } from '../route.js';
import { may } from '../session.js';
import { usePolling } from '../ticker.js';
import { Timeline } from '../timeline.js';
import { SECOND, parseTime } from '../time.js';
import { count, exitOf } from '../words.js';
import { spansOf } from '../worker_spans.js';
import { StatusBadges, WaitingOrders, isRunning, reasonOf } from './components.js';

const ASK_EVERY_MS = 2 * SECOND;
const ROWS_SHOWN = 50;
const NONE = [];
const LANES_LEFT_OUT = ['heartbeats', 'session'];
const LEASE_EVENTS = new Set(['WorkerRegistered', 'SessionReplaced', 'WorkerResurrected', 'WorkerDeactivated', 'WorkerCleanedUp', 'WorkerForgotten']);

export function Component({ ns, params }) {
  const { key } = params;
  const { component, group, error, ask } = useComponent(ns, key);
  const history = useHistory(ns, key);
  const spans = useMemo(() => spansOf([...history.events].reverse()), [history.events]);
  useEffect(() => {
    if (history.events.length) ask();
  }, [history.events]);
  if (error && !component) return html`<div class="stack"><${Back} ns=${ns} /><${Failure} error=${error} /></div>`;
  if (!component) return html`<${Loading} what="Loading the component" />`;
  return html`<div class="stack">
    <${Back} ns=${ns} />
    <${Head} ns=${ns} component=${component} group=${group} refresh=${ask} />
    <section class="card" aria-label="Timeline">
      ${history.events.length ? html`<${Timeline} spans=${spans} beats=${NONE} silences=${NONE} without=${LANES_LEFT_OUT} />` : history.error ? html`<${Failure} error=${history.error} />` : html`<${Loading} />`}
    </section>
    <${HealthCharts} history=${history} component=${component} />
    <${MetricCharts} ns=${ns} id=${key} />
    <div class="worker-columns">
      <div class="stack">
        <${Output} ns=${ns} component=${component} group=${group} />
        <${History} history=${history} />
      </div>
      <${Facts} ns=${ns} component=${component} />
    </div>
  </div>`;
}

const Back = ({ ns }) => html`<a class="back" href=${href('components', { ns })}><${Icon} name="back" />Components</a>`;

/** The component and its group; the group is null if the person may not read its supervisor. */
function useComponent(ns, key) {
  const [state, setState] = useState({ component: null, group: null, error: null });
  const ask = async (signal) => {
    try {
      const { component } = await get(inNamespace(ns, `components/${encodeURIComponent(key)}`), {}, { signal });
      const group = await groupOf(ns, component, signal);
      setState({ component, group, error: null });
    } catch (error) {
      if (!signal?.aborted) setState((was) => ({ ...was, error }));
    }
  };
  usePolling(ask, ASK_EVERY_MS, [ns, key]);
  return { ...state, ask };
}

async function groupOf(ns, component, signal) {
  const supervisor = `supervisor:${component.group}`;
  if (!may('reader', ns, supervisor)) return null;
  try {
    return (await get(inNamespace(ns, 'worker'), { worker_instance_key: supervisor }, { signal })).worker.component_group ?? null;
  } catch (error) {
    if (error.reason === 'WORKER_NOT_FOUND') return null;
    throw error;
  }
}

function Head({ ns, component, group, refresh }) {
  const running = isRunning(component);
  const act = (name) => () => orderComponents(name, ns, component.group, [component.component_id], refresh);
  const button = (name, label, danger = false) => html`<button type="button" class=${`button ${danger ? 'danger' : ''}`} onClick=${act(name)}>${label}</button>`;
  return html`<header class="view-head worker-head">
    <div class="worker-title">
      <h1 tabindex="-1"><${Name}>${component.component_id}<//></h1>
      <div class="badges">
        <${StatusBadges} component=${component} />
        ${group && !group.supervised && html`<${Badge} word="no supervisor" title="Nobody keeps it running" />`}
        <span class="mute">since <${Time} ms=${parseTime(component.status_time)} />${component.by && html`, by <bdi>${component.by}</bdi>`}${reasonOf(component) && html`: <bdi>${component.reason}</bdi>`}</span>
      </div>
      <${WaitingOrders} group=${group} id=${component.component_id} />
    </div>
    ${may('operator', ns) && html`<div class="buttons" role="group" aria-label="Actions">
      ${component.paused ? button('resume', 'Resume') : button('pause', 'Pause')}
      ${component.restart_count > 0 && button('reset', 'Reset')}
      ${running ? html`${button('restart', 'Restart')}${button('stop', 'Stop', true)}` : button('start', 'Start')}
    </div>`}
  </header>`;
}

/** The output that the supervisor keeps; without it, the last lines before the last exit. */
function Output({ ns, component, group }) {
  const asks = may('operator', ns, component.component_id) && group?.supervised !== false;
  const log = useLog(ns, component.component_id, asks);
  const last = component.last_exit?.last_lines ?? NONE;
  if (asks && (log.lines || !log.error)) return html`<section class="card"><h2>Output</h2><${Log} ...${log} /></section>`;
  return html`<section class="card">
    <h2>Output <span class="mute">${last.length ? 'the last lines before the last exit' : ''}</span></h2>
    ${last.length
      ? html`<${Log} lines=${last} error=${log.error} />`
      : html`<${Empty}>${log.error?.message ?? (group?.supervised === false ? 'The output is with the supervisor, which does not run.' : 'Who may restart a component may read its output.')}<//>`}
  </section>`;
}

function Facts({ ns, component }) {
  const facts = [
    ['group', html`<${Name}>${component.group}<//>`],
    ['process', component.process_id > 0 && html`<${Name}>${component.process_id}<//>`],
    isRunning(component) && ['uptime', html`<${Elapsed} ms=${parseTime(component.process_start_time)} />`],
    ['current job', component.current_job && html`<${Name} plain>${component.current_job}<//>`],
    ['shall run', component.wanted ? 'yes' : 'no'],
    ['takes jobs', component.paused ? 'no' : 'yes'],
    ['restarts', count(component.restart_count)],
    component.last_restart_time && ['last restart', html`<${Time} ms=${parseTime(component.last_restart_time)} ago />`],
    component.last_exit && ['last exit', html`<bdi>${exitOf(component.last_exit)}</bdi>, <${Time} ms=${parseTime(component.last_exit.time)} ago />`],
    ['host', component.host_name && html`<${Name}>${component.host_name}<//>`],
    ['build', component.build_id && html`<${Name}>${component.build_id}<//>`],
    ['first started', html`<${Time} ms=${parseTime(component.create_time)} ago />`],
    ['last seen', html`<${Time} ms=${parseTime(component.last_seen_time)} ago />`],
    ['lease', html`<a class="link" href=${workerHref(ns, component.component_id)}>epoch ${component.lease_epoch}, as a worker</a>`],
    ...detailsOf(component).map(([name, value]) => [html`<${Name} plain>${name}<//>`, html`<${Name} plain>${value}<//>`]),
  ];
  return html`<section class="card"><h2>About it</h2>
    <dl class="facts">${facts.filter((fact) => fact && fact[1]).map(([name, value], at) => html`<div key=${at}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
  </section>`;
}

/** What the process tells about itself: pairs of name and text. */
function detailsOf(component) {
  try {
    return Object.entries(JSON.parse(component.details_json || '{}')).map(([name, value]) => [name, typeof value === 'string' ? value : JSON.stringify(value)]);
  } catch {
    return [];
  }
}

function History({ history }) {
  const [shown, setShown] = useState(ROWS_SHOWN);
  const rows = useMemo(() => rowsOf(history.events), [history.events]);
  return html`<section class="card">
    <h2>History <span class="mute">newest first</span></h2>
    <div class="scroll-x"><table class="table cards">
      <thead><tr><th>time</th><th>status</th><th>reason</th><th>by</th><th class="num">process</th><th class="num">restarts</th><th>exit</th></tr></thead>
      <tbody>${rows.slice(0, shown).map((event) => html`<${HistoryRow} key=${event.sequence} event=${event} />`)}</tbody>
    </table></div>
    ${history.error && html`<${Failure} error=${history.error} />`}
    ${shown < rows.length
      ? html`<button type="button" class="button" onClick=${() => setShown(shown + ROWS_SHOWN)}>More</button>`
      : history.older && html`<button type="button" class="button" onClick=${history.older}>Older</button>`}
  </section>`;
}

/** Without snapshots, which only tell other numbers: they are in the charts. */
function rowsOf(events) {
  const rows = [];
  let before = null;
  for (let at = events.length - 1; at >= 0; at -= 1) {
    if (LEASE_EVENTS.has(events[at].type)) rows.push(events[at]);
    if (events[at].type !== 'ComponentChanged') continue;
    const { status, reason, process_id: process, restart_count: restarts, paused, wanted } = dataOf(events[at]);
    const facts = JSON.stringify([status, reason, process, restarts, paused, wanted]);
    if (facts !== before) rows.push(events[at]);
    before = facts;
  }
  return rows.reverse();
}

function HistoryRow({ event }) {
  const time = html`<td><${Time} ms=${parseTime(event.time)} /></td>`;
  if (event.type !== 'ComponentChanged') {
    return html`<tr>${time}<td data-label="lease" colspan="6" class="mute"><bdi>${sentenceOf(event)}</bdi></td></tr>`;
  }
  const data = dataOf(event);
  return html`<tr>${time}
    <td data-label="status"><${Badge} word=${String(data.status ?? '').toLowerCase()} /></td>
    <td data-label="reason" class="reason"><${Name} plain>${reasonOf(data)}<//></td>
    <td data-label="by"><${Name} plain>${data.by}<//></td>
    <td data-label="process" class="num">${data.process_id || '–'}</td>
    <td data-label="restarts" class="num">${data.restart_count ?? '–'}</td>
    <td data-label="exit"><${Name} plain>${exitOf(data.last_exit)}<//></td>
  </tr>`;
}
