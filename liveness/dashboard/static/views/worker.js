// One worker: its state, its timeline, its death certificates, its activities and its events.
import { drainWorker, expireWorker, pauseWorker, resumeWorker } from '../actions.js';
import { get, inNamespace } from '../api.js';
import { useCell } from '../cell.js';
import { useHistory } from '../history.js';
import { html, useEffect, useMemo, useState } from '../html.js';
import { Icon } from '../icons.js';
import { spansOf } from '../worker_spans.js';
import { connection } from '../live.js';
import { Badge } from '../parts/badge.js';
import { EventList } from '../parts/event_list.js';
import { LeaseBar } from '../parts/lease_bar.js';
import { MetricCharts } from '../parts/metric_charts.js';
import { Empty, Failure, Loading } from '../parts/notice.js';
import { ActivityLink, Name, Time } from '../parts/text.js';
import { href } from '../route.js';
import { may } from '../session.js';
import { usePolling } from '../ticker.js';
import { Timeline } from '../timeline.js';
import { SECOND, parseDuration, parseTime, showDuration } from '../time.js';
import { count, counted, inactiveReason, workerState, workerStatus } from '../words.js';
import { Deaths, lastHeartbeats, useCertificates } from './death.js';
import { InTemporal, temporalLink } from '../temporal_link.js';

const ASK_EVERY_MS = SECOND;
const ENTRY_EVERY_MS = 3 * SECOND;
const EVENTS_SHOWN = 50;
const BEATS_KEPT = 300;
const NO_BEATS = [];

export function Worker({ ns, params }) {
  const { key } = params;
  const { worker, error, ask, beats } = useWorker(ns, key);
  const history = useHistory(ns, key);
  const spans = useMemo(() => spansOf([...history.events].reverse()), [history.events]);
  const certificates = useCertificates(ns, key, spans.deaths);
  const known = useMemo(() => lastHeartbeats(certificates), [certificates]);
  useEffect(() => {
    if (history.events.length) ask();
  }, [history.events]);
  const allBeats = useMemo(() => [...new Set([...known.beats, ...beats])], [known, beats]);

  if (error && !worker) return html`<div class="stack"><${Back} ns=${ns} /><${Failure} error=${error} /></div>`;
  if (!worker) return html`<${Loading} what="Loading the worker" />`;
  return html`<div class="stack">
    <${Back} ns=${ns} />
    <${Head} ns=${ns} worker=${worker} refresh=${ask} />
    <section class="card" aria-label="Timeline">
      ${history.events.length ? html`<${Timeline} spans=${spans} beats=${allBeats} silences=${known.silences} />` : history.error ? html`<${Failure} error=${history.error} />` : html`<${Loading} />`}
    </section>
    <${MetricCharts} ns=${ns} id=${key} />
    <div class="worker-columns">
      <div class="stack">
        <${Deaths} ns=${ns} certificates=${certificates} />
        <${Held} ns=${ns} worker=${worker} />
        <${Events} history=${history} />
      </div>
      <div class="stack">
        ${worker.registered && html`<${RegistryEntry} ns=${ns} id=${key} />`}
        <${Facts} worker=${worker} />
      </div>
    </div>
  </div>`;
}

const Back = ({ ns }) => html`<a class="back" href=${href('workers', { ns })}><${Icon} name="back" />Workers</a>`;

/** The worker, polled every second, and the heartbeats that the polls have seen. */
function useWorker(ns, key) {
  const [state, setState] = useState({ worker: null, error: null, beats: NO_BEATS });
  useEffect(() => setState({ worker: null, error: null, beats: NO_BEATS }), [ns, key]);
  const ask = async (signal) => {
    try {
      const { worker } = await get(inNamespace(ns, 'worker'), { worker_instance_key: key }, { signal });
      const beat = parseTime(worker.last_heartbeat_time);
      setState((was) => {
        const fresh = beat !== null && was.beats.at(-1) !== beat;
        return { worker, error: null, beats: fresh ? [...was.beats, beat].slice(-BEATS_KEPT) : was.beats };
      });
    } catch (error) {
      if (!signal?.aborted) setState((was) => ({ ...was, error }));
    }
  };
  usePolling(ask, ASK_EVERY_MS, [ns, key]);
  return { ...state, ask };
}

function Head({ ns, worker, refresh }) {
  const state = workerState(worker.state);
  const row = { key: worker.worker_instance_key, held: worker.bound_activity_count, draining: worker.draining };
  const act = (action) => () => action(ns, row, refresh);
  const { state: line } = useCell(connection);
  return html`<header class="view-head worker-head">
    <div class="worker-title">
      <h1 tabindex="-1"><${Name}>${worker.worker_instance_key}<//></h1>
      <div class="badges">
        <${Badge} word=${state} />
        ${worker.suspect && html`<${Badge} word="suspect" title="Its stream broke; its lease ends soon unless something is heard of it" />`}
        ${worker.paused && html`<${Badge} word="paused" />`}
        ${worker.draining && html`<${Badge} word="draining" />`}
        ${worker.attached && html`<${Badge} word="attached" tone="good" title="A stream of this worker is open" />`}
        ${state !== 'active' && html`<bdi class="mute">${[inactiveReason(worker.inactive_reason), worker.inactive_detail].filter(Boolean).join(': ')}</bdi>`}
      </div>
      ${state === 'active' && html`<div class="head-lease"><${LeaseBar} deadline=${parseTime(worker.lease_deadline)} leaseMs=${parseDuration(worker.granted_lease_duration)} suspect=${worker.suspect} /></div>`}
    </div>
    ${may('operator', ns, row.key) && html`<div class="buttons" role="group" aria-label="Actions">
      ${worker.paused || worker.draining
        ? html`<button type="button" class="button" onClick=${act(resumeWorker)}>Resume</button>`
        : html`<button type="button" class="button" disabled=${state === 'cleaned up'} onClick=${act(pauseWorker)}>Pause</button>`}
      <button type="button" class="button" disabled=${state !== 'active'} onClick=${act(drainWorker)}>Drain</button>
      <button type="button" class="button danger" disabled=${state !== 'active'} onClick=${act(expireWorker)}>Expire</button>
    </div>`}
    ${line === 'lost' && html`<p class="mute stale-note">as of the last answer</p>`}
  </header>`;
}

/** What a registered component has beside its lease. */
function RegistryEntry({ ns, id }) {
  const [state, setState] = useState({ entry: null, error: null });
  usePolling(async (signal) => {
    try {
      const { entry } = await get(inNamespace(ns, `registry/${encodeURIComponent(id)}`), {}, { signal });
      setState({ entry, error: null });
    } catch (error) {
      if (!signal?.aborted) setState((was) => ({ ...was, error }));
    }
  }, ENTRY_EVERY_MS, [ns, id]);
  const { entry, error } = state;
  const late = entry?.stale && entry.status !== 'offline';
  const facts = entry && [
    ['kind', html`<${Name} plain>${entry.kind}<//>`],
    ['status', html`<${Badge} word=${entry.status} />${late && html` <${Badge} word="stale" title="Not heard of for two expected intervals" />`}`],
    ['where', entry.uri && html`<${Name}>${entry.uri}<//>`],
    ['capacity', entry.capacity === undefined || entry.capacity === null ? null : count(entry.capacity)],
    ['expected every', entry.expected_interval && showDuration(parseDuration(entry.expected_interval))],
    ['first seen', html`<${Time} ms=${parseTime(entry.first_seen_time)} ago />`],
    ['runs on', entry.runtime_json && html`<${Name} plain>${entry.runtime_json}<//>`],
    ...entry.replicas.map((replica) => ['replica', html`<${Name}>${processOf(replica)}<//>, seen <${Time} ms=${parseTime(replica.last_seen_time)} ago />`]),
  ];
  return html`<section class="card" aria-label="Registry entry"><h2>Registered as <a class="link" href=${href('registry', { ns })}>a component</a></h2>
    ${error && html`<${Failure} error=${error} />`}
    ${facts && html`<${FactList} facts=${facts} />`}
  </section>`;
}

const processOf = (replica) => (replica.host_name || replica.process_id ? `${replica.host_name}:${replica.process_id}` : replica.session_id);

function FactList({ facts }) {
  return html`<dl class="facts">${facts.filter((fact) => fact && (fact[1] || fact[1] === 0)).map(([name, value], at) => html`<div key=${at}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

function Facts({ worker }) {
  const facts = [
    ['session', html`<${Name}>${worker.session_id}<//>`],
    ['lease', `epoch ${worker.lease_epoch}, granted ${showDuration(parseDuration(worker.granted_lease_duration))}`],
    ['last heartbeat', html`<${Time} ms=${parseTime(worker.last_heartbeat_time)} ago /> (sequence ${worker.sequence})`],
    worker.cleanup_time && ['cleaned up at', html`<${Time} ms=${parseTime(worker.cleanup_time)} />`],
    worker.drain_deadline && ['drain ends', html`<${Time} ms=${parseTime(worker.drain_deadline)} />`],
    worker.disconnect_grace && ['stream grace', showDuration(parseDuration(worker.disconnect_grace))],
    ['reported status', workerStatus(worker.status)],
    ['identity', worker.worker_identity && html`<${Name}>${worker.worker_identity}<//>`],
    ['task queue', worker.task_queue && html`<${Name}>${worker.task_queue}<//>`],
    ['build', worker.build_id && html`<${Name}>${worker.build_id}<//>`],
    ['host', worker.host_name && html`<${Name}>${worker.host_name}<//>`],
    ['process', worker.process_id && html`<${Name}>${worker.process_id}<//>`],
    ['SDK', worker.sdk_name && html`<${Name} plain>${`${worker.sdk_name} ${worker.sdk_version}`}<//>`],
    worker.start_time && ['started', html`<${Time} ms=${parseTime(worker.start_time)} ago />`],
    ['current job', worker.current_job && html`<${Name} plain>${worker.current_job}<//>`],
    ['heartbeats', `${count(worker.heartbeat_count)} applied since it registered`],
    ['done', `${count(worker.successes)} succeeded, ${count(worker.errors)} failed`],
    ['last error', worker.last_error && html`<${Name} plain>${worker.last_error}<//>${worker.last_error_time && html` <${Time} ms=${parseTime(worker.last_error_time)} ago />`}`],
    worker.loop_lag && ['loop lag', showDuration(parseDuration(worker.loop_lag))],
    ...Object.entries(worker.labels).map(([name, value]) => [html`<${Name} plain>${name}<//>`, html`<${Name}>${value}<//>`]),
    ['capabilities', worker.capabilities.length > 0 && html`<${Name} plain>${worker.capabilities.join(', ')}<//>`],
    ['shard', worker.shard_id],
  ];
  return html`<section class="card"><h2>About it</h2><${FactList} facts=${facts} /></section>`;
}

function Held({ ns, worker }) {
  const lists = [
    ['Activities it holds', worker.bound_activities, 'It holds nothing.'],
    ['Taken away, not released yet', worker.cancel_activities, null],
  ];
  return html`<section class="card">
    ${lists.map(
      ([title, activities, nothing]) => (activities.length > 0 || nothing) && html`<div key=${title}>
        <h2>${title}${activities.length > 0 && html` <span class="mute">${count(activities.length)}</span>`}</h2>
        ${activities.length === 0
          ? html`<${Empty}>${nothing}<//>`
          : html`<div class="scroll-x tall"><table class="table"><thead><tr><th>activity</th><th class="num">attempt</th><th>task queue</th></tr></thead>
              <tbody>${activities.slice(0, HELD_SHOWN).map(
                (one) => html`<tr key=${JSON.stringify(one)}><td><${ActivityLink} ns=${ns} id=${one} /><${InTemporal} href=${temporalLink(ns, worker, one)} /></td><td class="num">${one.attempt}</td><td><${Name} plain>${one.task_queue || worker.task_queue}<//></td></tr>`,
              )}</tbody></table></div>`}
        ${activities.length > HELD_SHOWN && html`<p class="mute">and ${counted(activities.length - HELD_SHOWN, 'more', 'more')}</p>`}
      </div>`,
    )}
  </section>`;
}

const HELD_SHOWN = 200;

function Events({ history }) {
  const [shown, setShown] = useState(EVENTS_SHOWN);
  const { events, older, error } = history;
  return html`<section class="card">
    <h2>Events <span class="mute">newest first; plain renewals are not kept</span></h2>
    <${EventList} events=${events.slice(0, shown)} />
    ${error && html`<${Failure} error=${error} />`}
    ${shown < events.length
      ? html`<button type="button" class="button" onClick=${() => setShown(shown + EVENTS_SHOWN)}>More events</button>`
      : older && html`<button type="button" class="button" onClick=${older}>Older events</button>`}
  </section>`;
}
