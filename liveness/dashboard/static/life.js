// Converts a worker's events to the spans and marks that the timeline draws. Pure.
import { dataOf, sentenceOf } from './event_words.js';
import { parseTime } from './time.js';
import { inactiveReason, isDeath } from './words.js';

/**
 * events: oldest first. A span whose first event is not stored any more starts with the first known event; an open span has no end.
 * → {from, leases, absences, sessions, orders, held, marks, deaths, closed}
 */
export function lifeOf(events) {
  const life = { from: null, leases: [], absences: [], sessions: [], orders: [], held: [], marks: [], deaths: [], closed: null };
  let held = 0;
  for (const event of events) {
    const time = parseTime(event.time);
    const data = dataOf(event);
    life.from ??= time;
    const handle = HANDLERS[event.type];
    held = handle ? handle(life, time, data, held) : held;
    if (life.held.at(-1)?.count !== held) life.held.push({ time, count: held });
    const mark = MARKS[event.type];
    if (mark) life.marks.push({ time, kind: mark, text: sentenceOf(event), bad: isDeath(data.reason) });
  }
  return life;
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
  WorkerDeactivated(life, time, data) {
    end(life.leases, time, { reason: inactiveReason(data.reason), death: isDeath(data.reason) });
    end(life.sessions, time);
    for (const order of life.orders) if (order.kind === 'draining') order.to ??= time;
    life.absences.push({ from: time, to: null, reason: inactiveReason(data.reason), death: isDeath(data.reason) });
    if (isDeath(data.reason)) life.deaths.push({ time, epoch: life.leases.at(-1)?.epoch ?? null });
    return 0;
  },
  WorkerCleanedUp(life, time, data, held) {
    end(life.absences, time);
    life.closed = time;
    return held;
  },
  WorkerForgotten(life) {
    life.closed = null;
    return 0;
  },
  WorkerPaused(life, time, data, held) {
    life.orders.push({ kind: 'paused', from: time, to: null, reason: data.reason });
    return held;
  },
  WorkerResumed(life, time, data, held) {
    for (const order of life.orders) order.to ??= time;
    return held;
  },
  DrainBegun(life, time, data, held) {
    life.orders.push({ kind: 'draining', from: time, to: null, reason: data.reason });
    return held;
  },
  BindingsChanged: (life, time, data, held) => Math.max(0, held + data.bound.length - data.unbound.length),
  ActivityHanded: (life, time, data, held) => held + 1,
  BindingsEnded: (life, time, data, held) => Math.max(0, held - data.ids.length),
};

function activated(life, time, data) {
  end(life.absences, time);
  end(life.leases, time, { reason: 'replaced', death: false });
  // A session that comes back continues its span; a new session starts another.
  const last = life.sessions.at(-1);
  if (last && last.id === data.session_id) last.to = null;
  else {
    end(life.sessions, time);
    life.sessions.push({ id: data.session_id, from: time, to: null });
  }
  for (const order of life.orders) if (order.kind === 'draining') order.to ??= time;
  life.leases.push({ epoch: data.epoch, from: time, to: null, grantedMs: data.granted_ms });
  return data.bindings.length;
}

function end(spans, time, more = {}) {
  const last = spans.at(-1);
  if (last && last.to === null) Object.assign(last, { to: time }, more);
}
