// The stream of committed events. It reconnects by itself and continues after the last event that arrived. Everything on
// the page that says "live" depends on `connection`.
import { inNamespace, refusal } from './api.js';
import { cell } from './cell.js';
import { readEvents } from './sse.js';
import { SECOND, MINUTE } from './time.js';

const RETRY_MS = [300, 1_000, 2_000, 4_000];
/** A stream is lost after this long without data: it starts with an answer at once, and the server sends comments more often. */
const BEGIN_MS = 10 * SECOND;
const SILENCE_MS = 45 * SECOND;
/** A hidden page closes its connection after a while: browsers allow six connections per server. */
const HIDDEN_MS = MINUTE;
/** After this long it is quicker to load everything again than to read the missed events. */
const RESUME_MAX_MS = 10 * MINUTE;
const KEPT_EVENTS = 500;

/** state: connecting, live or lost. since: the time of the last change. */
export const connection = cell({ state: 'connecting', since: Date.now() });
/** The newest events, newest last. */
export const recent = cell([]);
/** Increases when events may have been missed: views then load their data again. */
export const reloadCount = cell(0);

const listeners = new Set();
let current = null;

/** `listener` is called with each batch of events. */
export function onEvents(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** Watches a namespace, or all with ''. */
export function watch(namespace) {
  if (current?.namespace === namespace) return;
  current?.stop();
  recent.set([]);
  current = new Watching(namespace);
  current.run();
}

export function stopWatching() {
  current?.stop();
  current = null;
}

/** Reconnects now: a call failed, or the user asked for it. */
export function tryAgain() {
  current?.retryNow();
}

function say(state) {
  if (connection.value.state !== state) connection.set({ state, since: Date.now() });
}

function deliver(events) {
  if (!events.length) return;
  for (const listener of [...listeners]) listener(events);
  recent.set([...recent.value, ...events].slice(-KEPT_EVENTS));
}

class Watching {
  constructor(namespace) {
    this.namespace = namespace;
    this.token = '';
    this.stopped = false;
    this.abort = new AbortController();
    this.wake = () => {};
  }

  stop() {
    this.stopped = true;
    this.retryNow();
  }

  retryNow() {
    this.abort.abort();
    this.wake();
  }

  async run() {
    let failures = 0;
    while (!this.stopped) {
      await this.untilSeen();
      if (this.stopped) return;
      const began = Date.now();
      try {
        await this.read(() => (failures = 0));
      } catch (error) {
        // The server has another database now, or deleted events that this page has not seen.
        if (error.reason === 'RESUME_TOKEN_INVALID') this.forget();
      }
      if (this.stopped) return;
      if (!document.hidden) say('lost');
      const wait = RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)];
      await this.pause(Math.max(0, wait - (Date.now() - began)));
    }
  }

  /** Starts anew: the list of events must not look complete where some are missing. */
  forget() {
    this.token = '';
    recent.set([]);
  }

  async read(onOpen) {
    const fresh = !this.token;
    this.abort = new AbortController();
    const headers = { Accept: 'text/event-stream' };
    if (this.token) headers['Last-Event-ID'] = this.token;
    const path = this.namespace ? inNamespace(this.namespace, 'events') : '/v1/events';
    let silence = setTimeout(() => this.abort.abort(), BEGIN_MS);
    const onSign = () => {
      clearTimeout(silence);
      silence = setTimeout(() => this.abort.abort(), SILENCE_MS);
    };
    const hidden = this.closeWhenHidden();
    try {
      const answer = await fetch(path, { headers, signal: this.abort.signal, cache: 'no-store' });
      if (!answer.ok) throw refusal(answer.status, await answer.text());
      onOpen();
      say('live');
      if (fresh) reloadCount.set(reloadCount.value + 1);
      for await (const message of readEvents(answer.body, onSign)) {
        if (message.id) this.token = message.id;
        deliver(eventsOf(message));
      }
    } finally {
      clearTimeout(silence);
      hidden();
    }
  }

  closeWhenHidden() {
    let timer = null;
    const changed = () => {
      clearTimeout(timer);
      if (document.hidden) timer = setTimeout(() => this.abort.abort(), HIDDEN_MS);
    };
    document.addEventListener('visibilitychange', changed);
    changed();
    return () => {
      clearTimeout(timer);
      document.removeEventListener('visibilitychange', changed);
    };
  }

  async untilSeen() {
    if (!document.hidden) return;
    const left = Date.now();
    await new Promise((resolve) => {
      this.wake = resolve;
      document.addEventListener('visibilitychange', resolve, { once: true });
    });
    if (Date.now() - left > RESUME_MAX_MS) this.forget();
  }

  pause(ms) {
    return new Promise((resolve) => {
      this.wake = resolve;
      setTimeout(resolve, ms);
    });
  }
}

function eventsOf(message) {
  // The server sends this event last if the same request would fail again.
  if (message.event === 'refusal') throw refusal(400, message.data);
  return JSON.parse(message.data).events ?? [];
}
