// Events as sentences. An event of unknown type is shown by its type name.
import { showDuration } from './time.js';
import { counted, exitOf, inactiveReason, activityName } from './words.js';

/** The event's data. */
export function dataOf(event) {
  try {
    return JSON.parse(event.data_json) ?? {};
  } catch {
    return {};
  }
}

const activity = (event, data) => activityName({ ...data, workflow_id: event.workflow_id });
const by = (data) => (data.by ? ` by ${data.by}` : '');
const because = (reason) => (reason ? `: ${reason}` : '');
const holding = (data) => (data.bindings?.length ? `, holding ${counted(data.bindings.length, 'activity', 'activities')}` : '');
const lease = (data) => `lease ${data.epoch} for ${showDuration(data.granted_ms)}`;

const SENTENCES = {
  WorkerRegistered: (e, d) => `registered with ${lease(d)}${holding(d)}`,
  SessionReplaced: (e, d) => `started over in a new session with ${lease(d)}${holding(d)}`,
  WorkerResurrected: (e, d) => `came back with ${lease(d)}${holding(d)}`,
  WorkerAdopted: (e, d) => `now belongs to ${d.principal}`,
  LeaseTermsChanged: (e, d) => `now has a lease of ${showDuration(d.granted_ms)}`,
  BindingsChanged: (e, d) => bindings(d),
  ActivityHanded: (e, d) => `was handed ${activityName(d.activity)}, attempt ${d.activity.attempt}`,
  BindingsEnded: (e, d) =>
    `${d.taken ? 'was told to stop' : 'is done with'} ${d.ids.length === 1 ? activityName(d.ids[0]) : counted(d.ids.length, 'activity', 'activities')}`,
  WorkerPaused: (e, d) => `was paused${by(d)}${because(d.reason)}`,
  WorkerResumed: (e, d) => `was resumed${by(d)}`,
  DrainBegun: (e, d) => `is being drained${by(d)}${because(d.reason)}`,
  DisconnectGraceGranted: (e, d) => `may be without a stream for ${showDuration(d.grace_ms)}`,
  WorkerDescribed: () => 'changed its description',
  WorkerDeactivated: (e, d) => `became inactive: ${inactiveReason(d.reason)}${by(d)}${d.detail ? ` (${d.detail})` : ''}`,
  WorkerCleanedUp: () => 'was cleaned up; its key is closed',
  WorkerForgotten: (e, d) => `was forgotten${by(d)}; its key is free again`,
  ComponentChanged: (e, d) => component(d),
  ComponentsOrdered: (e, d) => `was given order ${d.order.number}${by(d.order)}: ${ordered(d.order)}${because(d.order.reason)}`,
  ComponentOrdersDone: (e, d) => `has carried out its orders up to ${d.through}`,
  EntryChanged: (e, d) => `registers itself as ${d.status}${d.uri ? ` at ${d.uri}` : ''}`,
  ReplicaSeen: (e, d) => `is also registered by ${d.host_name || d.session_id}${d.process_id ? `:${d.process_id}` : ''}, as a replica`,
  ReplicaLeft: (e, d) => `has no replica ${d.session_id} any more`,
  ActivityScheduled: (e, d) => `${activity(e, d)} was scheduled on ${d.task_queue}${by(d)}`,
  ActivityStarted: (e, d) => `${activity(e, d)}, attempt ${d.attempt}, was handed to ${d.worker}`,
  ActivityHeartbeatRecorded: (e, d) => `${activity(e, d)}, attempt ${d.attempt}, is at work`,
  ActivityTimedOut: (e, d) => `${activity(e, d)}, attempt ${d.attempt}, failed${d.due_ms ? '' : ' for good'}${because(d.message)}`,
  ActivityCompleted: (e, d) => `${activity(e, d)} was completed by ${d.worker}`,
  ActivityAttemptFailed: (e, d) => `${activity(e, d)}, attempt ${d.attempt}, failed${because(d.message)}`,
  ActivityFailed: (e, d) => `${activity(e, d)} failed for good${because(d.message)}`,
  ActivityGivenBack: (e, d) => `${activity(e, d)} was given back by ${d.worker}${because(d.reason)}`,
  ActivityCancelled: (e, d) => `${activity(e, d)} was cancelled${by(d)}${because(d.reason)}`,
  ActivityCancelRequested: (e, d) => `${activity(e, d)}, attempt ${d.attempt}, was taken from ${d.worker}`,
  ActivityReleased: (e, d) => `${activity(e, d)} is on its way to another engine`,
  ActivityMadeAvailable: (e, d) => `${activity(e, d)} ${d.fresh ? `was given a fresh start${by(d)}` : 'is available'} as attempt ${d.attempt}${because(d.reason)}`,
  ActivityQuarantined: (e, d) => `${activity(e, d)} was quarantined ${d.deaths ? `after ${counted(d.deaths, 'death')} in a row` : 'by its worker'}`,
  ActivityHandedOn: (e, d) => `${activity(e, d)} was taken by another engine`,
  ProgressReported: (e, d) => `unit ${d.unit}: ${progressed(d)} by ${d.worker}`,
  ProgressForgotten: (e, d) => `unit ${d.unit} was forgotten${by(d)}${because(d.reason)}`,
  ScheduleSaved: (e, d) => `schedule ${d.schedule_id} schedules ${d.spec.activity.type} ${d.spec.cron ? `by ${d.spec.cron} (${d.spec.time_zone})` : `every ${showDuration(d.spec.every_ms)}`}${by(d)}`,
  SchedulePaused: (e, d) => `schedule ${d.schedule_id} is paused${by(d)}${because(d.reason)}`,
  ScheduleResumed: (e, d) => `schedule ${d.schedule_id} is resumed${by(d)}${because(d.reason)}`,
  ScheduleFired: (e, d) => `schedule ${d.schedule_id} fired ${d.tick_ms ? `for ${new Date(d.tick_ms).toISOString().replace('.000', '')}` : `by hand${by(d)}`}`,
  ScheduleTicksDropped: (e, d) => `schedule ${d.schedule_id} dropped ${counted(d.count, 'tick')}: ${d.overlapping ? 'the activity before is not finished' : 'nobody fired in time'}`,
  ScheduleDeleted: (e, d) => `schedule ${d.schedule_id} was deleted${by(d)}${because(d.reason)}`,
  ConcurrencyLimitSet: (e, d) => `workflow ${d.workflow_id} may have ${counted(d.maximum, 'activity', 'activities')} running at once${by(d)}${because(d.reason)}`,
  ConcurrencyLimitRemoved: (e, d) => `workflow ${d.workflow_id} has no concurrency limit any more${by(d)}${because(d.reason)}`,
  ConfigChanged: (e, d) => `settings changed${by(d)}${because(d.reason)}`,
  ShardTaken: (e, d) => `shard ${e.shard_id} is served by ${d.owner} under epoch ${d.epoch}`,
};

function bindings(data) {
  const parts = [];
  if (data.bound?.length) parts.push(`took ${counted(data.bound.length, 'activity', 'activities')}`);
  if (data.unbound?.length) parts.push(`released ${counted(data.unbound.length, 'activity', 'activities')}`);
  if (data.confirmed?.length) parts.push(`confirmed ${counted(data.confirmed.length, 'activity', 'activities')}`);
  return parts.join(', ') || 'changed what it holds';
}

function component(data) {
  const ended = data.status === 'CRASHED' ? exitOf(data.last_exit) : '';
  // The supervisor often gives the exit as the reason.
  const facts = [data.reason, ended !== data.reason && ended].filter(Boolean).join(', ');
  return `is ${data.status.toLowerCase()}${data.process_id ? ` as process ${data.process_id}` : ''}${by(data)}${because(facts)}`;
}

function progressed({ successes, error, errors }) {
  const done = successes || !error ? counted(successes, 'success', 'successes') : '';
  const failed = errors ? `${counted(errors, 'error', 'errors')}, the last one ${error}` : error && `the error ${error}`;
  return [done, failed].filter(Boolean).join(' and ');
}

function ordered({ action, components, processes }) {
  const word = action.toLowerCase().replaceAll('_', ' ');
  if (action === 'SCALE') return `${word} to ${counted(processes, 'process', 'processes')}`;
  return `${word} ${components.length ? components.join(', ') : 'the whole group'}`;
}

/** CamelCase → camel case */
const spelled = (type) => type.replace(/(?<=[a-z])(?=[A-Z])/g, ' ').toLowerCase();

export function sentenceOf(event) {
  const say = SENTENCES[event.type];
  try {
    return say ? say(event, dataOf(event)) : spelled(event.type);
  } catch {
    return spelled(event.type); // an event of another version may lack fields
  }
}

const BAD = new Set(['WorkerDeactivated', 'ActivityFailed', 'ActivityQuarantined', 'ActivityTimedOut', 'ActivityAttemptFailed', 'ActivityCancelRequested']);
const GOOD = new Set(['WorkerRegistered', 'WorkerResurrected', 'ActivityCompleted']);
const NOTED = new Set(['SessionReplaced', 'WorkerPaused', 'WorkerResumed', 'ComponentChanged', 'ComponentsOrdered', 'DrainBegun', 'ConfigChanged', 'ProgressForgotten', 'ScheduleSaved', 'SchedulePaused', 'ScheduleResumed', 'ScheduleTicksDropped', 'ScheduleDeleted', 'ConcurrencyLimitSet', 'ConcurrencyLimitRemoved', 'ShardTaken', 'ActivityCancelled']);

export function toneOfEvent(type) {
  if (BAD.has(type)) return 'bad';
  if (GOOD.has(type)) return 'good';
  return NOTED.has(type) ? 'info' : 'mute';
}
