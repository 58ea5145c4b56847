// The death certificate: why a lease expired, and what happened to the activities.
import { get, inNamespace } from '../api.js';
import { html, useEffect, useState } from '../html.js';
import { Badge } from '../parts/badge.js';
import { ActivityLink, Name, Time, WorkerLink } from '../parts/text.js';
import { href } from '../route.js';
import { parseDuration, parseTime, showDuration, showTime } from '../time.js';
import { activityState, counted, inactiveReason } from '../words.js';

/** The certificates of a worker's deaths by lease epoch; those that are not stored any more are left out. */
export function useCertificates(ns, key, deaths) {
  const [found, setFound] = useState(new Map());
  const epochs = deaths.map(({ epoch }) => epoch).filter((epoch) => epoch !== null).slice(-CERTIFICATES_MAX);
  // A certificate may change when the worker comes back, so it is loaded again with each new event of the worker.
  useEffect(() => {
    const ended = new AbortController();
    const ask = async (epoch) => {
      const query = { worker_instance_key: key, lease_epoch: epoch };
      return [epoch, await get(inNamespace(ns, 'worker/death'), query, { signal: ended.signal })];
    };
    Promise.allSettled(epochs.map(ask)).then((answers) => {
      if (!ended.signal.aborted) setFound(new Map(answers.filter((one) => one.status === 'fulfilled').map((one) => one.value)));
    });
    return () => ended.abort();
  }, [ns, key, deaths]);
  return found;
}

const CERTIFICATES_MAX = 10;

/** The last heartbeats and the silence after them, for the timeline. */
export function lastHeartbeats(certificates) {
  const beats = [];
  const silences = [];
  for (const certificate of certificates.values()) {
    for (const beat of certificate.heartbeats) beats.push(parseTime(beat.time));
    const last = parseTime(certificate.last_heartbeat_time);
    if (last !== null) silences.push({ from: last, to: parseTime(certificate.time) });
  }
  return { beats, silences };
}

export function Deaths({ ns, certificates }) {
  const epochs = [...certificates.keys()].sort((a, b) => b - a);
  const [chosen, setChosen] = useState(null);
  const epoch = certificates.has(chosen) ? chosen : epochs[0];
  if (epoch === undefined) return null;
  return html`<section class="card certificate" aria-label="Death certificate">
    <header class="card-head">
      <h2>Death certificate</h2>
      ${epochs.length > 1 && html`<div class="segments" role="group" aria-label="Which death">
        ${epochs.map((one) => html`<button key=${one} type="button" aria-pressed=${one === epoch} onClick=${() => setChosen(one)}>lease ${one}</button>`)}
      </div>`}
    </header>
    <${Certificate} ns=${ns} death=${certificates.get(epoch)} />
  </section>`;
}

function Certificate({ ns, death }) {
  const silence = parseDuration(death.silence);
  const granted = parseDuration(death.granted_lease_duration);
  const cause = inactiveReason(death.cause);
  return html`<div class="stack">
    <${VerdictOf} death=${death} />
    <p class="certificate-sentence" title=${death.detail}>
      Lease ${death.lease_epoch} ended at <b><${Time} ms=${parseTime(death.time)} /></b>: ${cause}. Nothing was heard for
      <b> ${showDuration(silence)}</b>, and ${showDuration(granted)} had been granted.
    </p>
    <div class="certificate-parts">
      <${Heartbeats} beats=${death.heartbeats} silence=${silence} granted=${granted} />
      <div class="stack"><div>
        <h3>Was it the server?</h3>
        ${death.stalls.length === 0
          ? html`<p class="mute">No. It was listening all the time.</p>`
          : html`<ul class="plain">${death.stalls.map(
              (stall) => html`<li key=${stall.time}><b><${Time} ms=${parseTime(stall.time)} /></b> ${stall.take_over ? 'another server took over' : 'it stood still or heard calls late'}${parseDuration(stall.duration) !== null ? ` for ${showDuration(parseDuration(stall.duration))}` : ''}; none of that counted.</li>`,
            )}</ul>`}
      </div>
      <${ConcurrentDeaths} death=${death} /></div>
    </div>
    <${Moved} ns=${ns} death=${death} />
  </div>`;
}

function VerdictOf({ death }) {
  if (death.verdict !== 'VERDICT_FALSE') return html`<p class="verdict stands">Verdict: stands. Nothing is known to the contrary.</p>`;
  const after = parseTime(death.refuted_time) - parseTime(death.time);
  return html`<p class="verdict false">Verdict: FALSE. The same session came back ${showDuration(after)} later: it had been alive.</p>`;
}

/** A bar for each interval between the last heartbeats, and one for the silence after them. */
function Heartbeats({ beats, silence, granted }) {
  const gaps = beats.map((beat) => ({ time: parseTime(beat.time), gap: parseDuration(beat.gap) }));
  const longest = Math.max(1, silence ?? 0, granted ?? 0, ...gaps.map(({ gap }) => gap ?? 0));
  const height = (ms) => ({ height: `${Math.max(3, (100 * (ms ?? 0)) / longest)}%` });
  return html`<div>
    <h3>Last heartbeats</h3>
    ${gaps.length === 0 && html`<p class="mute">None of them was heard by the server that ended the lease.</p>`}
    <div class="gaps" role="img" aria-label=${`${counted(gaps.length, 'heartbeat')}, then silence for ${showDuration(silence)}`}>
      ${gaps.map(({ time, gap }) => html`<span key=${time} class="gap" title=${`${showTime(time)}: ${gap === null ? 'the first that is known' : `${showDuration(gap)} after the one before`}`}><i style=${height(gap)}></i><small>${gap === null ? '·' : showDuration(gap)}</small></span>`)}
      <span class="gap silence" title=${`silence: ${showDuration(silence)}`}><i style=${height(silence)}></i><small>${showDuration(silence)}</small></span>
    </div>
    <p class="mute">Time between heartbeats, oldest first; the last bar is the silence that ended the lease.</p>
  </div>`;
}

function ConcurrentDeaths({ death }) {
  const company = death.company ?? {};
  const rows = [
    ['on the same host', death.host_name, company.same_host],
    ['of the same build', death.build_id, company.same_build],
    ['in the namespace', death.namespace, company.same_namespace],
  ].filter(([, name]) => name); // a worker without a host name shares it with no other
  return html`<div>
    <h3>Who died with it</h3>
    <ul class="plain">${rows.map(
      ([where, name, number]) => html`<li key=${where}><b class=${number ? 'bad' : 'mute'}>${number ?? 0}</b> ${where} ${name && html`<${Name}>${name}<//>`}</li>`,
    )}</ul>
    <p class="mute">within a minute before or after</p>
    ${death.incident && html`<p class="death-incident"><a class="link" href=${href('insight', { ns: death.namespace, incident: death.incident.incident_id })}>One incident:</a> <bdi>${death.incident.message}</bdi></p>`}
  </div>`;
}

function Moved({ ns, death }) {
  return html`<div>
    <h3>What it held</h3>
    ${death.activity_count === 0
      ? html`<p class="mute">Nothing.</p>`
      : html`<div class="scroll-x"><table class="table">
          <thead><tr><th>activity</th><th class="num">lost attempt</th><th>is now</th><th>with</th><th class="num">attempt</th></tr></thead>
          <tbody>${death.activities.map(
            (moved) => html`<tr key=${JSON.stringify(moved.activity)}>
              <td><${ActivityLink} ns=${ns} id=${moved.activity} /></td>
              <td class="num">${moved.activity.attempt}</td>
              <td>${activityState(moved.state) ? html`<${Badge} word=${activityState(moved.state)} />` : html`<span class="mute">not kept any more</span>`}</td>
              <td><${WorkerLink} ns=${ns} name=${moved.worker_instance_key} /></td>
              <td class="num">${moved.attempt || '–'}</td>
            </tr>`,
          )}</tbody>
        </table></div>`}
    ${death.activity_count > death.activities.length && html`<p class="mute">and ${counted(death.activity_count - death.activities.length, 'more', 'more')}</p>`}
  </div>`;
}
