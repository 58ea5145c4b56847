// The newest events, and then every event as it happens.
import { sentenceOf } from '../event_words.js';
import { html, useState } from '../html.js';
import { Icon } from '../icons.js';
import { EventList } from '../parts/event_list.js';
import { Empty, Failure, Loading } from '../parts/notice.js';
import { useRecentEvents } from '../recent_events.js';
import { count } from '../words.js';

const SHOWN = 200;

export function Events({ ns }) {
  const { events: known, error } = useRecentEvents(ns);
  const [held, setHeld] = useState(null);
  const [text, setText] = useState('');
  const events = held ?? known ?? [];
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const found = events.filter((event) => words.every((word) => searchTextOf(event).includes(word)));
  const missed = held ? known.length - known.indexOf(held.at(-1)) - 1 : 0;
  return html`<div class="stack">
    <header class="view-head">
      <h1 tabindex="-1">Events</h1>
      <span class="mute">${ns ? '' : 'of all namespaces, '}newest first</span>
    </header>
    <div class="tools">
      <label class="search"><${Icon} name="search" /><span class="visually-hidden">Filter events</span>
        <input type="search" value=${text} placeholder="worker, activity, type …" autocomplete="off" spellcheck=${false} onInput=${(event) => setText(event.target.value)} /><kbd>/</kbd>
      </label>
      <button type="button" class="button" disabled=${known === null} aria-pressed=${held !== null} onClick=${() => setHeld(held ? null : known)}>${held ? `Go on${missed ? ` (${count(missed)} new)` : ''}` : 'Hold still'}</button>
    </div>
    ${error && html`<${Failure} error=${error} />`}
    <section class="card flush">
      ${known === null && !error ? html`<${Loading} />` : found.length === 0 ? html`<${Empty}>${events.length ? 'No event matches.' : 'Waiting for something to happen …'}<//>` : html`<${EventList} events=${found.slice(-SHOWN).reverse()} withSubject />`}
    </section>
  </div>`;
}

const searchTextOf = (event) => `${event.type} ${event.namespace} ${event.worker_instance_key} ${sentenceOf(event)}`.toLowerCase();
