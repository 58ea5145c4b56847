// A component's health over time: restarts and every number that its process told, from the snapshots in its history.
import { Chart } from './charts.js';
import { dataOf } from './event_words.js';
import { html, useEffect, useMemo, useState } from './html.js';
import { DAY, HOUR, MINUTE, parseTime, serverNow } from './time.js';
import { brief, counted } from './words.js';

const RANGES = [['15 min', 15 * MINUTE], ['1 h', HOUR], ['1 day', DAY], ['all', Infinity]];
const NUMBERS_MAX = 12;
const TONES = ['info', 'accent', 'good', 'warn'];
const WITHOUT_PROCESS = ['STOPPED', 'CRASHED', 'FAILED'];
/** Values hold until the next snapshot, however long that takes. */
const NO_INTERVAL = Infinity;

/** Snapshots of this many events are shown at most. */
const EVENTS_MAX = 5_000;
const precise = new Intl.NumberFormat('en', { maximumSignificantDigits: 4 });

/** history: the result of `useHistory`; its older pages are read as far as the range asks for them. */
export function HealthCharts({ history, component }) {
  const { events, older } = history;
  const [range, setRange] = useState(HOUR);
  useEffect(() => {
    const oldest = parseTime(events.at(-1)?.time);
    if (older && events.length < EVENTS_MAX && oldest > parseTime(events[0].time) - range) older();
  }, [events, range]);
  const all = useMemo(() => snapshotsOf(events, component.process_id > 0 ? parseTime(component.last_seen_time) : serverNow()), [events, component.last_seen_time]);
  const samples = useMemo(() => within(all, range), [all, range]);
  const names = useMemo(() => namesOf(all), [all]);
  if (all.length === 0) return null;
  const shown = names.slice(0, NUMBERS_MAX);
  return html`<section class="stack" aria-label="Health over time">
    <header class="view-head">
      <h2>Health over time</h2>
      <span class="mute">${names.length === 0 ? 'numbers in its health frames, such as files_processed, appear here' : names.length > shown.length ? `${shown.length} of ${counted(names.length, 'number')}` : ''}</span>
      <div class="segments" role="group" aria-label="How far to look back">
        ${RANGES.map(([label, ms]) => html`<button key=${label} type="button" aria-pressed=${ms === range} onClick=${() => setRange(ms)}>${label}</button>`)}
      </div>
    </header>
    <div class="charts">
      <${HealthChart} name="restarts" tone="bad" samples=${samples} of=${(sample) => sample.restarts} integers=${true} />
      ${shown.map((name, at) => html`<${HealthChart} key=${`number ${name}`} name=${name} tone=${TONES[at % TONES.length]} samples=${samples} of=${(sample) => sample.numbers[name] ?? null} integers=${all.every((sample) => Number.isInteger(sample.numbers[name] ?? 0))} />`)}
    </div>
  </section>`;
}

function HealthChart({ name, tone, samples, of, integers }) {
  const series = [{ label: 'value', tone, of, steps: true, area: true }];
  return html`<${Chart} title=${name} samples=${samples} intervalMs=${NO_INTERVAL} rangeMs=${NO_INTERVAL} series=${series} integers=${integers} show=${integers ? brief : exact} />`;
}

const exact = (value) => (Math.abs(value) < 10_000 ? precise.format(value) : brief(value));

/** → [{time, restarts, numbers}], oldest first. Without a process there are no numbers. `until`: until when the last one holds. */
function snapshotsOf(events, until) {
  const samples = [];
  for (let at = events.length - 1; at >= 0; at -= 1) {
    const { type, time } = events[at];
    if (type === 'ComponentChanged') {
      const { status, details, restart_count: restarts } = dataOf(events[at]);
      samples.push({ time: parseTime(time), restarts, numbers: WITHOUT_PROCESS.includes(status) ? {} : numbersOf(details) });
    } else if (type === 'WorkerDeactivated' && samples.length) {
      samples.push({ ...samples.at(-1), time: parseTime(time), numbers: {} });
    }
  }
  const last = samples.at(-1);
  if (last && until > last.time) samples.push({ ...last, time: until });
  return samples;
}

function numbersOf(details) {
  try {
    return Object.fromEntries(Object.entries(JSON.parse(details || '{}')).filter(([, value]) => Number.isFinite(value)));
  } catch {
    return {};
  }
}

/** The snapshots of this time, and what was true when it began. */
function within(samples, range) {
  const from = (samples.at(-1)?.time ?? 0) - range;
  const first = samples.findIndex((sample) => sample.time >= from);
  if (first <= 0) return samples;
  return [{ ...samples[first - 1], time: from }, ...samples.slice(first)];
}

/** The names of the newest snapshot first. */
function namesOf(samples) {
  const names = new Set();
  for (let at = samples.length - 1; at >= 0; at -= 1) Object.keys(samples[at].numbers).forEach((name) => names.add(name));
  return [...names];
}
