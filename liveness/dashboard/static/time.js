// Times and durations: parsing, formatting, and the current time of the server.

export const SECOND = 1_000;
export const MINUTE = 60 * SECOND;
export const HOUR = 60 * MINUTE;
export const DAY = 24 * HOUR;

/** RFC 3339 to milliseconds; null if it is not set. */
export function parseTime(text) {
  const ms = text ? Date.parse(text) : NaN;
  return Number.isNaN(ms) ? null : ms;
}

/** "3.5s" to milliseconds; null if it is not set. */
export function parseDuration(text) {
  const seconds = text ? parseFloat(text) : NaN;
  return Number.isNaN(seconds) ? null : seconds * SECOND;
}

// The server's time is its last known value plus the time since then on a monotonic clock.
let epoch = Date.now() - performance.now();

/** `sent` and `received` are on performance.now(); the server read its clock between them. */
export function setServerTime(ms, sent, received) {
  if (ms !== null) epoch = ms - (sent + received) / 2;
}

export function serverNow() {
  return epoch + performance.now();
}

/** Two units at most: "4.2 s", "3 min 12 s", "2 d 4 h". */
export function showDuration(ms) {
  if (ms === null || ms === undefined) return '–';
  if (ms < 0) return `−${showDuration(-ms)}`;
  if (ms < SECOND) return `${Math.round(ms)} ms`;
  if (ms < 10 * SECOND) return `${(ms / SECOND).toFixed(1).replace(/\.0$/, '')} s`;
  if (ms < MINUTE) return `${Math.round(ms / SECOND)} s`;
  const units = [[DAY, 'd'], [HOUR, 'h'], [MINUTE, 'min'], [SECOND, 's']];
  const at = units.findIndex(([size]) => ms >= size);
  const [size, name] = units[at];
  const [restSize, restName] = units[at + 1] ?? units[at];
  const count = Math.floor(ms / size);
  const rest = Math.floor((ms - count * size) / restSize);
  return rest && size !== restSize ? `${count} ${name} ${rest} ${restName}` : `${count} ${name}`;
}

export function showAgo(ms) {
  const passed = serverNow() - ms;
  return passed < SECOND ? 'just now' : `${showDuration(passed)} ago`;
}

const clock = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23' });
const clockShort = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit', hourCycle: 'h23' });
const day = new Intl.DateTimeFormat(undefined, { month: 'short', day: 'numeric' });
const exact = new Intl.DateTimeFormat(undefined, { dateStyle: 'medium', timeStyle: 'long' });

export const showClock = (ms, withSeconds) => (withSeconds ? clock : clockShort).format(ms);

/** Without the date if it is today. */
export function showTime(ms) {
  if (ms === null) return '–';
  const time = clock.format(ms);
  return new Date(ms).toDateString() === new Date(serverNow()).toDateString() ? time : `${day.format(ms)} ${time}`;
}

export function showTimeExactly(ms) {
  return ms === null ? '' : `${exact.format(ms)} (${new Date(ms).toISOString()})`;
}
