// One activity: its state, its input and its result.
import { get, inNamespace } from '../api.js';
import { html, useEffect, useState } from '../html.js';
import { Icon } from '../icons.js';
import { useListing } from '../listing.js';
import { Badge } from '../parts/badge.js';
import { EventList } from '../parts/event_list.js';
import { Failure, Loading } from '../parts/notice.js';
import { Name, Time, WorkerLink } from '../parts/text.js';
import { href } from '../route.js';
import { InTemporal, RESCUE_QUEUE, temporalLink } from '../temporal_link.js';
import { parseDuration, parseTime, showDuration } from '../time.js';
import { activityName, activityState, attemptOutcome, counted, timeoutType } from '../words.js';
import { ActivityButtons } from './activities.js';

const SHOWN_CHARACTERS = 20_000;
const KNOWN_ENCODINGS = ['json/plain', 'text/plain', 'binary/plain', 'binary/null'];

export function Activity({ ns, params }) {
  const id = { workflow_id: params.workflow ?? '', run_id: params.run ?? '', activity_id: params.activity ?? '' };
  const query = Object.fromEntries(Object.entries(id).map(([name, value]) => [`id.${name}`, value]));
  const { answer, error, ask } = useListing(
    (signal) => get(inNamespace(ns, 'activity'), query, { signal }),
    (event) => event.workflow_id === id.workflow_id,
    [ns, params.workflow, params.run, params.activity],
  );
  const activity = answer?.activity;
  return html`<div class="stack">
    <a class="back" href=${href('activities', { ns })}><${Icon} name="back" />Activities</a>
    <header class="view-head">
      <h1 tabindex="-1"><${Name}>${activityName(id)}<//></h1>
      ${activity && html`<${ActivityButtons} ns=${ns} id=${id} state=${activityState(activity.state)} refresh=${ask} />`}
    </header>
    ${error && html`<${Failure} error=${error} />`}
    ${!activity && !error && html`<${Loading} />`}
    ${activity && html`<${Facts} ns=${ns} activity=${activity} />
      ${activity.heartbeat_details_time && html`<${Payload} title="Progress" bytes=${activity.heartbeat_details} encoding=${activity.heartbeat_details_encoding}>
        <p class="mute">Told <${Time} ms=${parseTime(activity.heartbeat_details_time)} ago />. The next attempt is given it.</p><//>`}
      <div class="columns"><${Payload} title="Input" bytes=${activity.input} encoding=${activity.input_encoding} /><${Payload} title="Result" bytes=${activity.result} encoding=${activity.result_encoding} /></div>
      <${History} ns=${ns} query=${query} version=${JSON.stringify([activity.state, activity.attempt, activity.since])} />`}
  </div>`;
}

function Facts({ ns, activity }) {
  const policy = activity.retry_policy ?? {};
  const facts = [
    ['state', html`<${Badge} word=${activityState(activity.state)} /> since <${Time} ms=${parseTime(activity.since)} />`],
    ['held by', activity.worker_instance_key && html`<${WorkerLink} ns=${ns} name=${activity.worker_instance_key} /> under lease ${activity.lease_epoch}`],
    activity.due_time && ['available at', html`<${Time} ms=${parseTime(activity.due_time)} />`],
    ['workflow', html`<${Name}>${activity.id.workflow_id}<//>${activity.task_queue === RESCUE_QUEUE && html`<${Workflow} ns=${ns} activity=${activity} />`}`],
    ['run', activity.id.run_id && html`<${Name}>${activity.id.run_id}<//>`],
    ['activity', html`<${Name}>${activity.id.activity_id}<//>`],
    ['type', activity.activity_type && html`<${Name}>${activity.activity_type}<//>`],
    ['task queue', html`<${Name}>${activity.task_queue}<//>`],
    ['attempt', `${activity.attempt}; ${counted(activity.failures, 'failure')}, ${counted(activity.worker_deaths, 'death')} of its workers in a row`],
    ['last failure', activity.last_failure && html`<bdi>${activity.last_failure}</bdi>`],
    activity.priority && ['priority', `${activity.priority.priority_key}${activity.priority.fairness_key ? `; fairness key ${activity.priority.fairness_key}, weight ${activity.priority.fairness_weight}` : ''}`],
    ['time limits', limitWords(activity.timeouts ?? {})],
    activity.timeout_time && ['time is over', html`<${Time} ms=${parseTime(activity.timeout_time)} /> (${timeoutType(activity.next_timeout_type)})`],
    activity.last_heartbeat_time && ['last heartbeat', html`<${Time} ms=${parseTime(activity.last_heartbeat_time)} ago />`],
    ['retried', policyWords(policy)],
    ['shard', activity.shard_id],
  ];
  return html`<section class="card"><h2>Where it is</h2>
    <dl class="facts">${facts.filter((fact) => fact && (fact[1] || fact[1] === 0)).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
  </section>`;
}

/** The link from the rescue of a lost attempt to its workflow in Temporal, which the workers that held it know. */
function Workflow({ ns, activity }) {
  const [link, setLink] = useState('');
  const id = JSON.stringify(activity.id);
  useEffect(() => {
    const asking = new AbortController();
    const query = Object.fromEntries(Object.entries(activity.id).map(([name, value]) => [`id.${name}`, value]));
    get(inNamespace(ns, 'activity/history'), query, { signal: asking.signal })
      .then(({ attempts = [] }) => findLink(ns, activity.id, attempts, asking.signal))
      .then(setLink)
      .catch(() => {}); // the history below says what is wrong
    return () => asking.abort();
  }, [ns, id, activity.attempt]);
  return html`<${InTemporal} href=${link} />`;
}

async function findLink(ns, id, attempts, signal) {
  for (const key of new Set([...attempts].reverse().map((attempt) => attempt.worker_instance_key))) {
    try {
      const { worker } = await get(inNamespace(ns, 'worker'), { worker_instance_key: key }, { signal });
      const link = temporalLink(ns, worker, id);
      if (link) return link;
    } catch {
      // It was forgotten: another one may know.
    }
  }
  return '';
}

function History({ ns, query, version }) {
  const [found, setFound] = useState(null);
  const [error, setError] = useState(null);
  useEffect(() => {
    const asking = new AbortController();
    get(inNamespace(ns, 'activity/history'), query, { signal: asking.signal }).then(
      (answer) => { setFound(answer); setError(null); },
      (problem) => asking.signal.aborted || setError(problem),
    );
    return () => asking.abort();
  }, [ns, JSON.stringify(query), version]);
  const attempts = [...(found?.attempts ?? [])].reverse();
  const events = [...(found?.events ?? [])].reverse();
  return html`${error && html`<${Failure} error=${error} />`}
    ${found && html`<section class="card"><h2>Attempts</h2>
      ${attempts.length === 0 ? html`<p class="mute">No worker has held it yet.</p>` : html`<div class="scroll-x"><table class="table cards">
        <thead><tr><th class="num">attempt</th><th>outcome</th><th>worker</th><th>started</th><th>took</th><th>reason</th></tr></thead>
        <tbody>${attempts.map((attempt) => html`<${Attempt} key=${attempt.attempt} ns=${ns} attempt=${attempt} />`)}</tbody>
      </table></div>`}
    </section>
    <section class="card flush"><h2>Who moved it</h2>
      ${found.is_cut && html`<p class="mute">There are older events; these are the newest.</p>`}
      <${EventList} events=${events} />
    </section>`}`;
}

function Attempt({ ns, attempt }) {
  const start = parseTime(attempt.start_time);
  const end = parseTime(attempt.end_time);
  return html`<tr>
    <td data-label="attempt" class="num">${attempt.attempt}</td>
    <td data-label="outcome"><${Badge} word=${attemptOutcome(attempt.outcome)} /></td>
    <td data-label="worker"><${WorkerLink} ns=${ns} name=${attempt.worker_instance_key} /></td>
    <td data-label="started">${start !== null && html`<${Time} ms=${start} />`}</td>
    <td data-label="took">${start !== null && end !== null && showDuration(end - start)}</td>
    <td data-label="reason"><bdi>${attempt.message}</bdi>${attempt.stack_trace && html`<details><summary>Where it failed</summary><pre>${attempt.stack_trace}</pre></details>`}</td>
  </tr>`;
}

function limitWords(timeouts) {
  return Object.entries(timeouts)
    .map(([name, limit]) => `${name.replace('_timeout', '').replaceAll('_', ' ')} ${showDuration(parseDuration(limit))}`)
    .join(', ');
}

function policyWords(policy) {
  const times = policy.maximum_attempts ? `at most ${counted(policy.maximum_attempts, 'attempt')}` : 'any number of attempts';
  const wait = parseDuration(policy.initial_interval);
  return wait === null ? times : `${times}, ${showDuration(wait)} apart, then ${policy.backoff_coefficient} × longer each, up to ${showDuration(parseDuration(policy.maximum_interval))}`;
}

function Payload({ title, bytes, encoding, children }) {
  const named = encoding && !KNOWN_ENCODINGS.includes(encoding) && html`<p class="mute">Encoding <${Name}>${encoding}<//></p>`;
  return html`<section class="card"><h2>${title}</h2>${bytes ? html`<pre>${readable(bytes, encoding)}</pre>` : html`<p class="mute">None.</p>`}${named}${children}</section>`;
}

/** Decodes base64 to text if it is any, and lays out JSON; else returns it as it is. A text or bytes that look like JSON stay as they are. */
function readable(base64, encoding) {
  let text;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(Uint8Array.from(atob(base64), (character) => character.charCodeAt(0)));
  } catch {
    text = `base64: ${base64}`;
  }
  try {
    if (!encoding || encoding === 'json/plain') text = JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    // not JSON
  }
  return text.length > SHOWN_CHARACTERS ? `${text.slice(0, SHOWN_CHARACTERS)} …` : text;
}
