// What the history of a namespace says: workers that died together, and what other settings would have meant.
import { get, inNamespace } from '../api.js';
import { html, useEffect, useState } from '../html.js';
import { useListing } from '../listing.js';
import { Empty, Failure, Loading } from '../parts/notice.js';
import { TuningChart } from '../parts/tuning_chart.js';
import { Name, Time, WorkerLink } from '../parts/text.js';
import { adjust } from '../route.js';
import { DAY, SECOND, parseDuration, parseTime, showDuration } from '../time.js';
import { count, counted, percent } from '../words.js';

const RANGES = [['1 day', 1], ['7 days', 7], ['30 days', 30]];
const CAUSES = { INCIDENT_CAUSE_HOST: 'host', INCIDENT_CAUSE_BUILD: 'build', INCIDENT_CAUSE_TASK_QUEUE: 'task queue' };

export function Insight({ ns, params }) {
  const [days, setDays] = useState(7);
  const range = `${(days * DAY) / SECOND}s`;
  return html`<div class="stack">
    <header class="view-head"><h1 tabindex="-1">Insight</h1><span class="mute">what its history says about this namespace</span><span class="space"></span>
      <div class="segments" role="group" aria-label="How far back">
        ${RANGES.map(([label, number]) => html`<button key=${number} type="button" aria-pressed=${number === days} onClick=${() => setDays(number)}>${label}</button>`)}
      </div>
    </header>
    <${Incidents} ns=${ns} range=${range} open=${params.incident} />
    <${Tuning} key=${ns + days} ns=${ns} range=${range} />
  </div>`;
}

function Incidents({ ns, range, open }) {
  const { answer, error } = useListing(
    (signal) => get(inNamespace(ns, 'incidents'), { range }, { signal }),
    (event) => event.type === 'WorkerDeactivated' || event.type === 'WorkerResurrected',
    [ns, range],
  );
  const found = answer?.incidents ?? [];
  return html`<section class="card" aria-label="Incidents">
    <header class="card-head"><h2>Workers that died together</h2></header>
    ${error && html`<${Failure} error=${error} />`}
    ${!answer && !error && html`<${Loading} />`}
    ${answer && found.length === 0 && html`<${Empty}>No three workers died within a minute and had something in common.<//>`}
    ${found.map((incident) => html`<${Incident} key=${incident.incident_id} ns=${ns} incident=${incident} open=${incident.incident_id === open || found.length === 1} />`)}
  </section>`;
}

export function causeOf({ cause, label, value }) {
  if (cause === 'INCIDENT_CAUSE_WIDESPREAD') return 'nothing but the time';
  return html`${CAUSES[cause] ?? label} <${Name}>${value}<//>`;
}

function Incident({ ns, incident, open }) {
  const began = parseTime(incident.start_time);
  const workers = incident.worker_instance_keys ?? [];
  const flip = (event) => event.target.open && adjust({ incident: incident.incident_id });
  return html`<details class="incident" open=${open} onToggle=${flip}>
    <summary><b class="bad">${counted(incident.dead, 'worker')}</b><span><${Time} ms=${began} /></span><span class="incident-cause">${causeOf(incident)}</span></summary>
    <p><bdi>${incident.message}</bdi></p>
    <${Shares} incident=${incident} />
    ${incident.returned > 0 && html`<p class="mute">${count(incident.returned)} of them came back since.</p>`}
    <ul class="incident-workers">${workers.map((key) => html`<li key=${key}><${WorkerLink} ns=${ns} name=${key} /></li>`)}${incident.dead > workers.length && html`<li class="mute">and ${count(incident.dead - workers.length)} more</li>`}</ul>
  </details>`;
}

/** The evidence: which part of the dead had it, and which part of those that lived on. */
function Shares({ incident }) {
  if (incident.cause === 'INCIDENT_CAUSE_WIDESPREAD') return null;
  const rows = [
    ['of the dead', Number(incident.dead_with), Number(incident.dead), 'bad'],
    ['of those that lived on', Number(incident.living_with), Number(incident.living), 'good'],
  ];
  return html`<dl class="shares">${rows.map(
    ([who, part, whole, tone]) => html`<div key=${who}><dt>${who}</dt><dd><span class="share-bar"><i class=${`tone-${tone}`} style=${{ width: `${whole ? (100 * part) / whole : 0}%` }}></i></span>${count(part)} of ${count(whole)}</dd></div>`,
  )}</dl>`;
}

function Tuning({ ns, range }) {
  const [{ answer, error }, setState] = useState({});
  useEffect(() => {
    const ended = new AbortController();
    get(inNamespace(ns, 'tuning'), { range }, { signal: ended.signal })
      .then((answer) => setState({ answer }))
      .catch((error) => ended.signal.aborted || setState({ error }));
    return () => ended.abort();
  }, [ns, range]);
  return html`<section class="card" aria-label="Tuning">
    <header class="card-head"><h2>Which lease?</h2></header>
    ${error && (error.reason === 'TOO_LITTLE_HISTORY' ? html`<${Empty}>${error.message}<//>` : html`<${Failure} error=${error} />`)}
    ${!answer && !error && html`<${Loading} />`}
    ${answer && html`<${Outcomes} answer=${answer} />`}
  </section>`;
}

function Outcomes({ answer }) {
  const best = answer.recommended ?? 0;
  return html`<div class="stack">
    <p class="verdict ${best ? 'stands' : 'neutral'}"><bdi>${answer.reason}</bdi></p>
    <p class="mute">${count(answer.deaths)} leases ended because nothing was heard, ${count(answer.false_deaths)} of them of workers that were alive. Deaths were found
      ${' '}${showDuration(parseDuration(answer.detection_median))} after the last heartbeat (median). Workers went on after ${counted(answer.survived_silences, 'long silence')} in ${showDuration(parseDuration(answer.watched))} of worker time.</p>
    <${TuningChart} outcomes=${answer.outcomes} best=${best} />
    <div class="scroll-x"><table class="table cards">
      <thead><tr><th>setting</th>${['found after', 'p99', 'false deaths', 'run twice', 'work waited', 'storms', 'longest silence'].map((name) => html`<th key=${name} class="num">${name}</th>`)}</tr></thead>
      <tbody>${answer.outcomes.map((outcome, at) => html`<${Row} key=${at} outcome=${outcome} best=${at === best} />`)}</tbody>
    </table></div>
    <p class="mute">Replayed by the server's own code; nothing was changed. Heartbeats are taken to come about every third of the lease, as the SDK sends them.</p>
  </div>`;
}

export function settingOf(outcome) {
  const parts = [['lease', outcome.lease], ['grace', outcome.disconnect_grace], ['storm hold', outcome.storm_hold]]
    .filter(([, value]) => value)
    .map(([name, value]) => `${name} ${showDuration(parseDuration(value))}`);
  if (outcome.storm_share !== undefined && outcome.storm_share !== null) parts.push(`storm share ${percent(outcome.storm_share, 1)}`);
  return parts.join(', ') || `today: lease ${showDuration(parseDuration(outcome.usual_lease))}`;
}

function Row({ outcome, best }) {
  const duration = (name) => showDuration(parseDuration(outcome[name]));
  return html`<tr class=${best ? 'best' : ''}>
    <td>${best && html`<b class="good" title="recommended">→ </b>`}${settingOf(outcome)}</td>
    <td data-label="found after" class="num">${duration('detection_median')}</td>
    <td data-label="p99" class="num">${duration('detection_p99')}</td>
    <td data-label="false deaths" class="num"><span class=${Number(outcome.false_deaths) ? 'bad' : ''}>${count(outcome.false_deaths)}</span></td>
    <td data-label="run twice" class="num">${count(outcome.repeated_activities)}</td>
    <td data-label="work waited" class="num">${duration('waited')}</td>
    <td data-label="storms" class="num">${count(outcome.storms)}</td>
    <td data-label="longest silence" class="num">${percent(outcome.longest_silence_share, 1)}</td>
  </tr>`;
}
