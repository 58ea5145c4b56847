// The API's constants as words, and the colour of each. A colour never says more than the word.

/** WORKER_STATE_CLEANED_UP → cleaned up */
function tail(prefix, value) {
  return (value ?? '').startsWith(prefix) ? value.slice(prefix.length).toLowerCase().replaceAll('_', ' ') : '';
}

const named = (prefix) => (value) => {
  const word = tail(prefix, value);
  return word === 'unspecified' ? '' : word;
};

export const workerState = named('WORKER_STATE_');
export const workerStatus = named('WORKER_STATUS_');
export const activityState = named('ACTIVITY_STATE_');
export const timeoutType = named('TIMEOUT_TYPE_');
export const attemptOutcome = named('ATTEMPT_OUTCOME_');
export const taskState = named('TASK_STATE_');
export const componentStatus = named('COMPONENT_STATUS_');
export const componentAction = named('COMPONENT_ACTION_');
export const nodeState = named('NODE_STATE_');

const TONES = {
  active: 'good',
  healthy: 'good',
  serving: 'good',
  ready: 'good',
  started: 'good',
  completed: 'good',
  done: 'good',
  inactive: 'bad',
  crashed: 'bad',
  offline: 'bad',
  'no supervisor': 'bad',
  lost: 'bad',
  failed: 'bad',
  'timed out': 'bad',
  'worker died': 'bad',
  running: 'good',
  quarantined: 'bad',
  'dead lettered': 'bad',
  waiting: 'warn',
  stale: 'warn',
  stopping: 'warn',
  retrying: 'warn',
  leaving: 'warn',
  released: 'warn',
  suspect: 'warn',
  paused: 'info',
  starting: 'info',
  draining: 'info',
  available: 'info',
  pending: 'info',
};

export const toneOf = (word) => (Object.hasOwn(TONES, word) ? TONES[word] : 'mute');

const REASONS = {
  LEASE_EXPIRED: 'lease expired',
  SHUTDOWN: 'shut down',
  FORCED: 'forced out',
  DISCONNECTED: 'stream broke',
  DRAINED: 'drained',
  PROCESS_EXITED: 'process ended',
};

/** Accepts both the API's name and the one in events. */
export function inactiveReason(value) {
  const name = (value ?? '').replace('INACTIVE_REASON_', '');
  return REASONS[name] ?? named('')(name);
}

/** Whether a lease ended because of silence, a broken stream or a process that ended: then there is a death certificate. */
export const isDeath = (value) => /(LEASE_EXPIRED|DISCONNECTED|PROCESS_EXITED)$/.test(value ?? '');

/** How a process ended; `ended` is from the API or from an event. */
export function exitOf(ended) {
  if (!ended) return '';
  if (ended.signal) return `killed by ${ended.signal}`;
  return Number.isInteger(ended.code) ? `exit code ${ended.code}` : 'ended';
}

/** 1,234 · 12.3 k · 4.5 M */
const plain = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 });

export const count = (value) => plain.format(Number(value));
export const brief = (value) => (Math.abs(value) < 10_000 ? plain.format(value) : short.format(value));

/** "1 activity", "3 activities" */
export function counted(number, one, many = `${one}s`) {
  return `${count(number)} ${Number(number) === 1 ? one : many}`;
}

export function percent(part, whole) {
  if (!Number(whole)) return '–';
  const share = (100 * Number(part)) / Number(whole);
  return `${share > 0 && share < 1 ? share.toFixed(1) : Math.round(share)} %`;
}

/** The parts of an activity's name; run ids are often empty or long. */
export function activityName({ workflow_id, run_id, activity_id }) {
  return [workflow_id, run_id, activity_id].filter(Boolean).join(' / ');
}

/** 1536 → 1.5 KiB */
export function bytes(number) {
  const units = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB'];
  let at = 0;
  while (number >= 1_024 && at < units.length - 1) {
    number /= 1_024;
    at += 1;
  }
  return `${number < 10 && at ? Math.round(number * 10) / 10 : Math.round(number)} ${units[at]}`;
}
