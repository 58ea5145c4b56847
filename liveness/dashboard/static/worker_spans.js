// Converts a worker's events to the spans and marks that the timeline draws. Pure.
import { dataOf, sentenceOf } from './event_words.js';
import { parseTime } from './time.js';
import { inactiveReason, isDeath } from './words.js';

/**
 * events: oldest first. A span whose first event is not stored any more starts with the first known event; an open span has no end.
 * → {from, statuses, leases, absences, sessions, orders, held, marks, deaths, closed}
 */
export function spansOf(events) {
  const spans = { from: null, statuses: [], leases: [], absences: [], sessions: [], orders: [], held: [], marks: [], deaths: [], closed: null };
  let held = 0;
  for (const event of events) {
    const time = parseTime(event.time);
    const data = dataOf(event);
    spans.from ??= time;
    const handle = HANDLERS[event.type];
    held = handle ? handle(spans, time, data, held) : held;
    if (spans.held.at(-1)?.count !== held) spans.held.push({ time, count: held });
    const mark = MARKS[event.type];
    if (mark) spans.marks.push({ time, kind: mark, text: sentenceOf(event), bad: isDeath(data.reason) });
  }
  return spans;
}

const MARKS = {
  WorkerRegistered: 'birth',
  SessionReplaced: 'session',
  WorkerResurrected: 'return',
  WorkerDeactivated: 'end',
  WorkerCleanedUp: 'closed',
};

const HANDLERS = {
  WorkerRegistered: activated,
  SessionReplaced: activated,
  WorkerResurrected: activated,
  WorkerDeactivated(spans, time, data) {
    end(spans.leases, time, { reason: inactiveReason(data.reason), death: isDeath(data.reason) });
    end(spans.sessions, time);
    for (const order of spans.orders) if (order.kind === 'draining') order.to ??= time;
    lost(spans, time);
    spans.absences.push({ from: time, to: null, reason: inactiveReason(data.reason), death: isDeath(data.reason) });
    if (isDeath(data.reason)) spans.deaths.push({ time, epoch: spans.leases.at(-1)?.epoch ?? null });
    return 0;
  },
  WorkerCleanedUp(spans, time, data, held) {
    end(spans.absences, time);
    spans.closed = time;
    return held;
  },
  ComponentChanged(spans, time, data, held) {
    const last = spans.statuses.at(-1);
    const status = data.status.toLowerCase();
    if (last && last.to === null && last.status === status) return held;
    end(spans.statuses, time);
    spans.statuses.push({ status, from: time, to: null, reason: data.reason });
    return held;
  },
  WorkerForgotten(spans) {
    spans.closed = null;
    return 0;
  },
  WorkerPaused(spans, time, data, held) {
    spans.orders.push({ kind: 'paused', from: time, to: null, reason: data.reason });
    return held;
  },
  WorkerResumed(spans, time, data, held) {
    for (const order of spans.orders) order.to ??= time;
    return held;
  },
  DrainBegun(spans, time, data, held) {
    spans.orders.push({ kind: 'draining', from: time, to: null, reason: data.reason });
    return held;
  },
  BindingsChanged: (spans, time, data, held) => Math.max(0, held + data.bound.length - data.unbound.length),
  ActivityHanded: (spans, time, data, held) => held + 1,
  BindingsEnded: (spans, time, data, held) => Math.max(0, held - data.ids.length),
};

const WITHOUT_PROCESS = ['stopped', 'crashed', 'failed'];

/** A lease that ends without a report: nobody knows of the process any more, so it counts as crashed. */
function lost(spans, time) {
  const last = spans.statuses.at(-1);
  if (!last || WITHOUT_PROCESS.includes(last.status)) return;
  end(spans.statuses, time);
  spans.statuses.push({ status: 'crashed', from: time, to: null, reason: 'nothing was heard of its supervisor' });
}

function activated(spans, time, data) {
  spans.closed = null;
  end(spans.absences, time);
  end(spans.leases, time, { reason: 'replaced', death: false });
  // A session that comes back continues its span; a new session starts another.
  const last = spans.sessions.at(-1);
  if (last && last.id === data.session_id) last.to = null;
  else {
    end(spans.sessions, time);
    spans.sessions.push({ id: data.session_id, from: time, to: null });
  }
  for (const order of spans.orders) if (order.kind === 'draining') order.to ??= time;
  spans.leases.push({ epoch: data.epoch, from: time, to: null, grantedMs: data.granted_ms });
  return data.bindings.length;
}

function end(lane, time, more = {}) {
  const last = lane.at(-1);
  if (last && last.to === null) Object.assign(last, { to: time }, more);
}
