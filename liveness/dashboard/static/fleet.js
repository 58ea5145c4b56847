// Polls the summary of the fleet. After the first poll, only new samples are requested.
import { get } from './api.js';
import { cell } from './cell.js';
import { setServerTime, parseDuration, parseTime, serverNow, SECOND, MINUTE } from './time.js';

export const RANGE_MS = 30 * MINUTE;
const SAMPLES_MAX = 3_600;

/** The summary of one namespace, or of all (''): {time, intervalMs, samples, namespaces, queues, taskQueues, alerts, …}. */
export class Fleet {
  constructor(namespace) {
    this.namespace = namespace;
    this.summary = cell(null);
  }

  /** Rethrows the error of the call. */
  async ask(signal) {
    const before = this.summary.value;
    const last = before?.samples.at(-1)?.time;
    const range = last === undefined ? RANGE_MS : Math.min(RANGE_MS, serverNow() - last + 3 * before.intervalMs);
    const sent = performance.now();
    const answer = await get('/v1/fleet', { namespace: this.namespace, range: `${Math.max(1, Math.ceil(range / SECOND))}s` }, { signal });
    const time = parseTime(answer.time);
    setServerTime(time, sent, performance.now());
    this.summary.set({
      time,
      intervalMs: parseDuration(answer.interval) || SECOND,
      samples: joined(before?.samples ?? [], (answer.samples ?? []).map(sampleOf), time - RANGE_MS),
      namespaces: answer.namespaces ?? [],
      queues: answer.queues ?? [],
      alerts: answer.alerts ?? [],
      taskQueues: answer.task_queues ?? [],
      relays: answer.relays ?? false,
      nodes: answer.nodes ?? 0,
      shards: answer.shards ?? 0,
      servingShards: answer.serving_shards ?? 0,
      storage: answer.storage ? storageOf(answer.storage) : null,
    });
  }
}

/** Numbers that are not known are null. */
function storageOf(storage) {
  const known = (value) => (value === undefined || value === null ? null : Number(value));
  return { used: Number(storage.used_bytes), free: known(storage.free_bytes), growth: known(storage.growth_bytes_per_day), days: known(storage.days_until_full) };
}

function sampleOf(sample) {
  return {
    time: parseTime(sample.time),
    active: Number(sample.active),
    inactive: Number(sample.inactive),
    cleanedUp: Number(sample.cleaned_up),
    suspects: Number(sample.suspects),
    heartbeats: Number(sample.heartbeats),
    refused: Number(sample.refused_heartbeats),
    p50: sample.latency_p50_ms,
    p99: sample.latency_p99_ms,
    registrations: Number(sample.registrations),
    expiries: Number(sample.expiries),
    resurrections: Number(sample.resurrections),
    reschedules: Number(sample.reschedules),
    queueDepth: Number(sample.queue_depth),
    available: Number(sample.available_activities),
  };
}

/** Merges two lists of samples in order of time; newer samples replace older ones. */
function joined(known, fresh, since) {
  const from = fresh[0]?.time ?? Infinity;
  return [...known.filter((sample) => sample.time < from && sample.time >= since), ...fresh].slice(-SAMPLES_MAX);
}

/** The summary of all namespaces; the frame of the page refreshes it. */
export const allNamespaces = new Fleet('');
