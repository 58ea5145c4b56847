// A list of events with time, subject and sentence. A click shows the whole event.
import { html } from '../html.js';
import { sentenceOf, toneOfEvent } from '../event_words.js';
import { parseTime } from '../time.js';
import { Name, Time, WorkerLink } from './text.js';

export function EventList({ events, withSubject = false }) {
  return html`<ol class="events">
    ${events.map(
      (event) => html`<li key=${`${event.shard_id}:${event.sequence}:${event.worker_instance_key}:${event.type}`} class="event">
        <details>
          <summary>
            <span class="event-time"><${Time} ms=${parseTime(event.time)} /></span>
            <i class=${`dot tone-${toneOfEvent(event.type)}`} aria-hidden="true"></i>
            <span class="event-text">
              ${withSubject && event.worker_instance_key && html`<span class="event-subject"><${WorkerLink} ns=${event.namespace} name=${event.worker_instance_key} /></span> `}
              <bdi>${sentenceOf(event)}</bdi>
            </span>
            ${withSubject && event.namespace && html`<span class="event-ns"><${Name}>${event.namespace}<//></span>`}
          </summary>
          <p class="mute">${event.type} · shard ${event.shard_id}, sequence ${event.sequence} · observed ${event.observed_ms} ms</p>
          <pre>${pretty(event.data_json)}</pre>
        </details>
      </li>`,
    )}
  </ol>`;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
