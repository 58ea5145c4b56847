// The workers of one namespace, as rows for the table. Three sources keep them current: events, which report every change
// but plain renewals; pages that are read one after the other in the background, which report everything; and single
// requests for visible rows whose lease has run down by a good part.
import { get, inNamespace } from './api.js';
import { cell } from './cell.js';
import { dataOf } from './event_words.js';
import { parseDuration, parseTime, serverNow, SECOND } from './time.js';
import { workerState, inactiveReason } from './words.js';

const PAGE_SIZE = 1_000;
export const WORKERS_MAX = 100_000;
/** The pause between two rounds through all pages. */
const ROUND_PAUSE_MS = 1.5 * SECOND;
/** The pause after a page, as a multiple of the time that it took: a large fleet may cost the server a tenth of its time. */
const PAUSE_PER_PAGE = 9;
const NOTIFY_EVERY_MS = 250;
const LOOK_EVERY_MS = SECOND;
const LOOKS_AT_ONCE = 4;
/** Workers usually renew a lease after a third of its time; a lease that ran down further was probably renewed. */
const LOOK_BELOW = 0.6;
const LOOK_AGAIN_MS = 2 * SECOND;

export class Roster {
  constructor(namespace) {
    this.namespace = namespace;
    this.rows = new Map();
    /** Increases when any row has changed, a few times a second at most. */
    this.version = cell(0);
    /** {loading, complete, error} of the first round. */
    this.progress = cell({ loading: true, complete: false, error: null });
    this.visible = [];
    this.ended = new AbortController();
    this.notifyTimer = null;
    /** How long the request of the last page took. */
    this.pageMs = 0;
    this.looking = new Set();
  }

  start() {
    this.refresh();
    this.lookTimer = setInterval(() => this.look(), LOOK_EVERY_MS);
  }

  stop() {
    this.ended.abort();
    clearInterval(this.lookTimer);
    clearTimeout(this.notifyTimer);
  }

  /** The rows that are visible now. */
  show(keys) {
    this.visible = keys;
  }

  changed() {
    this.notifyTimer ??= setTimeout(() => {
      this.notifyTimer = null;
      this.version.set(this.version.value + 1);
    }, NOTIFY_EVERY_MS);
  }

  // -- pages

  async refresh() {
    const { signal } = this.ended;
    for (let round = 0; !signal.aborted; round++) {
      try {
        await this.round(round === 0);
        this.progress.set({ loading: false, complete: true, error: null });
      } catch (error) {
        if (signal.aborted) return;
        this.progress.set({ loading: false, complete: this.progress.value.complete, error });
      }
      await this.pause(Math.max(ROUND_PAUSE_MS, PAUSE_PER_PAGE * this.pageMs));
      while (document.hidden && !signal.aborted) await this.pause(SECOND);
    }
  }

  async round(first) {
    const { signal } = this.ended;
    const began = performance.now();
    const seen = new Set();
    let token = '';
    do {
      const asked = performance.now();
      const answer = await get(inNamespace(this.namespace, 'workers'), { page_size: PAGE_SIZE, page_token: token }, { signal });
      for (const worker of answer.workers) {
        seen.add(worker.worker_instance_key);
        this.take(worker, asked);
      }
      this.changed();
      token = answer.next_page_token;
      this.pageMs = performance.now() - asked;
      if (token && !first) await this.pause(PAUSE_PER_PAGE * this.pageMs);
    } while (token && seen.size < WORKERS_MAX && !signal.aborted);
    if (token || signal.aborted) return;
    // A worker that was on no page is gone, unless an event has reported it since.
    for (const [key, row] of this.rows) if (!seen.has(key) && row.eventAt < began) this.rows.delete(key);
  }

  pause(ms) {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms);
      this.ended.signal.addEventListener('abort', () => (clearTimeout(timer), resolve()), { once: true });
    });
  }

  /** `asked`: the time of the request. Events that arrived after it are newer. */
  take(worker, asked) {
    const before = this.rows.get(worker.worker_instance_key);
    if (before && before.eventAt > asked) return;
    this.rows.set(worker.worker_instance_key, rowOf(worker, asked));
  }

  // -- events

  applyEvents(events) {
    for (const event of events) {
      if (event.namespace === this.namespace && event.worker_instance_key) this.applyEvent(event);
    }
    this.changed();
  }

  applyEvent(event) {
    const key = event.worker_instance_key;
    const data = dataOf(event);
    if (event.type === 'WorkerForgotten') {
      this.rows.delete(key);
      return;
    }
    const before = this.rows.get(key);
    const change = changeOf(event, data, before);
    // Unknown workers come with their page; only an activation contains enough for a new row.
    if (!change || (!before && !ACTIVATIONS.has(event.type))) return;
    const row = { ...(before ?? blank(key)), ...change, eventAt: performance.now() };
    row.searchText = searchTextOf(row);
    this.rows.set(key, row);
  }

  // -- visible rows

  look() {
    if (document.hidden) return;
    const now = performance.now();
    const wanted = this.visible
      .map((key) => this.rows.get(key))
      .filter((row) => row?.state === 'active' && !this.looking.has(row.key) && now - row.requestedAt > LOOK_AGAIN_MS)
      .filter((row) => row.deadline - serverNow() < LOOK_BELOW * row.leaseMs)
      .sort((a, b) => a.requestedAt - b.requestedAt);
    for (const row of wanted.slice(0, LOOKS_AT_ONCE - this.looking.size)) this.lookAt(row.key);
  }

  async lookAt(key) {
    this.looking.add(key);
    const asked = performance.now();
    try {
      const query = { worker_instance_key: key };
      const { worker } = await get(inNamespace(this.namespace, 'worker'), query, { signal: this.ended.signal });
      this.take(worker, asked);
      this.changed();
    } catch {
      // The banner says that the server cannot be reached, or the next round finds that the worker is gone.
    } finally {
      this.looking.delete(key);
      if (!this.ended.signal.aborted && performance.now() - asked < LOOK_EVERY_MS) this.look();
    }
  }
}

function blank(key) {
  return {
    key, state: 'active', epoch: 1, leaseMs: 0, deadline: null, beat: null, reason: '', held: 0, queue: '', build: '',
    host: '', paused: false, draining: false, suspect: false, attached: false, requestedAt: 0, eventAt: 0, searchText: '',
  }; // prettier-ignore
}

function rowOf(worker, asked) {
  const row = {
    key: worker.worker_instance_key,
    state: workerState(worker.state),
    epoch: Number(worker.lease_epoch),
    leaseMs: parseDuration(worker.granted_lease_duration) ?? 0,
    deadline: parseTime(worker.lease_deadline),
    beat: parseTime(worker.last_heartbeat_time),
    reason: inactiveReason(worker.inactive_reason),
    held: worker.bound_activity_count,
    queue: worker.task_queue,
    build: worker.build_id,
    host: worker.host_name,
    paused: worker.paused,
    draining: worker.draining,
    suspect: worker.suspect,
    attached: worker.attached,
    /** On performance.now(): when the row was last requested, and when an event last changed it. */
    requestedAt: asked,
    eventAt: 0,
  };
  row.searchText = searchTextOf(row);
  return row;
}

/** The text that the filter searches; the parts are separated by a character that no name contains. */
function searchTextOf(row) {
  return [row.key, row.host, row.build, row.queue].join('\n').toLowerCase();
}

export function marksOf(row) {
  return ['suspect', 'paused', 'draining'].filter((mark) => row[mark]);
}

const ACTIVATIONS = new Set(['WorkerRegistered', 'SessionReplaced', 'WorkerResurrected']);

function changeOf(event, data, before) {
  const time = parseTime(event.time);
  const profile = (of) => ({ queue: of.task_queue, build: of.build_id, host: of.host_name });
  if (ACTIVATIONS.has(event.type)) {
    return {
      state: 'active', epoch: data.epoch, leaseMs: data.granted_ms, deadline: time + data.granted_ms, beat: time, reason: '',
      held: data.bindings.length, suspect: false, draining: false, ...profile(data.profile),
    }; // prettier-ignore
  }
  switch (event.type) {
    case 'WorkerDeactivated':
      return { state: 'inactive', reason: inactiveReason(data.reason), held: 0, deadline: null, suspect: false, attached: false };
    case 'WorkerCleanedUp':
      return { state: 'cleaned up' };
    case 'WorkerPaused':
      return { paused: true };
    case 'WorkerResumed':
      return { paused: false, draining: false };
    case 'DrainBegun':
      return { draining: true };
    case 'LeaseTermsChanged':
      return { leaseMs: data.granted_ms, deadline: time + data.granted_ms };
    case 'WorkerDescribed':
      return profile(data.profile);
    case 'ActivityHanded':
      return { held: (before?.held ?? 0) + 1 };
    case 'BindingsChanged':
      return { held: Math.max(0, (before?.held ?? 0) + data.bound.length - data.unbound.length) };
    case 'BindingsEnded':
      return { held: Math.max(0, (before?.held ?? 0) - data.ids.length) };
    default:
      return null;
  }
}
