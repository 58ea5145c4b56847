// Charts of the metrics that a component reports, one per metric with a line per set of labels. Nothing if it reports none.
import { get, inNamespace } from '../api.js';
import { Chart } from '../charts.js';
import { html, useMemo, useState } from '../html.js';
import { may } from '../session.js';
import { usePolling } from '../ticker.js';
import { DAY, HOUR, MINUTE, SECOND, parseTime, serverNow } from '../time.js';
import { counted } from '../words.js';
import { Failure } from './notice.js';

const ASK_EVERY_MS = 10 * SECOND;
const RANGES = [['15 min', 15 * MINUTE], ['1 h', HOUR], ['6 h', 6 * HOUR], ['1 d', DAY], ['7 d', 7 * DAY]]; // prettier-ignore
const STEPS = 180;
const SERIES_SHOWN = 200;
const LINES_SHOWN = 6;
const TONES = ['accent', 'info', 'warn', 'good', 'bad', 'mute'];

/** Who may read a single component only may not read its metrics. */
export const MetricCharts = ({ ns, id }) => may('reader', ns) && html`<${ReportedMetrics} key=${id} ns=${ns} id=${id} />`;

function ReportedMetrics({ ns, id }) {
  const [rangeMs, setRangeMs] = useState(HOUR);
  const [{ series, more, error, stepMs }, setFound] = useState({ series: [], more: false, error: null, stepMs: SECOND });
  const ask = async (signal) => {
    const step = Math.max(SECOND, Math.ceil(rangeMs / STEPS));
    // Steps begin at the same times in each answer, so that the lines do not change their form.
    const start = Math.floor(serverNow() / step) * step - rangeMs;
    try {
      const answer = await get(
        inNamespace(ns, 'metrics'),
        { worker_instance_key: id, start_time: new Date(start).toISOString(), step: `${step / SECOND}s`, page_size: SERIES_SHOWN },
        { signal },
      );
      setFound({ series: answer.series, more: Boolean(answer.next_page_token), error: null, stepMs: step });
    } catch (error) {
      if (!signal?.aborted) setFound((was) => ({ ...was, error }));
    }
  };
  usePolling(ask, ASK_EVERY_MS, [ns, id, rangeMs]);
  const metrics = useMemo(() => metricsOf(series, stepMs), [series, stepMs]);
  if (error) return html`<${Failure} error=${error} />`;
  // Whoever reported before keeps the choice of the range.
  if (metrics.length === 0 && rangeMs === HOUR) return null;
  return html`<section class="stack" aria-label="Reported metrics">
    <header class="view-head">
      <h2>Reported metrics</h2>
      <div class="segments" role="group" aria-label="Time range of metrics">
        ${RANGES.map(([name, ms]) => html`<button key=${name} type="button" aria-pressed=${ms === rangeMs} onClick=${() => setRangeMs(ms)}>${name}</button>`)}
      </div>
    </header>
    ${metrics.length === 0 && html`<p class="mute">Nothing was reported in this time.</p>`}
    ${more && html`<p class="mute">These are the first ${SERIES_SHOWN} series; the command liveness metrics query shows all.</p>`}
    <div class="charts">
      ${metrics.map((metric) => html`<${Chart} key=${metric.key} title=${metric.name} note=${metric.note} samples=${metric.samples}
        intervalMs=${metric.intervalMs} rangeMs=${rangeMs} series=${metric.lines} show=${number} integers=${false} anyScale />`)}
    </div>
  </section>`;
}

/** One entry per metric: its lines, and rows of a time with the value of each line. */
function metricsOf(series, stepMs) {
  const byName = new Map();
  for (const one of series) byName.set(one.name, [...(byName.get(one.name) ?? []), one]);
  return [...byName].map(([name, found]) => {
    const shown = found.slice(0, LINES_SHOWN);
    const isCounter = shown[0].type === 'METRIC_TYPE_COUNTER';
    const columns = shown.map((one) => pointsOf(one));
    const intervalMs = Math.max(stepMs, ...columns.map(usualDistance));
    const times = [...new Set(columns.flatMap((points) => points.map((point) => point.time)))].sort((a, b) => a - b);
    const filled = columns.map((points) => valuesAt(points, times, 3 * intervalMs));
    const left = found.length - shown.length;
    const words = [shown[0].help, isCounter ? `${shown[0].unit || 'rise'} per second` : shown[0].unit, left > 0 && `and ${counted(left, 'more series', 'more series')}`];
    return {
      name,
      // A chart draws the lines with which it was made.
      key: JSON.stringify([name, isCounter, shown.map((one) => one.labels)]),
      note: words.filter(Boolean).join(' · '),
      intervalMs,
      samples: times.map((time, at) => ({ time, values: filled.map((values) => values[at]) })),
      lines: shown.map((one, at) => ({ label: labelOf(one.labels), tone: TONES[at], of: (sample) => sample.values[at] })),
    };
  });
}

/** Of a gauge its values; of a counter how fast it rises. A total that is lower than before has started anew. */
function pointsOf(series) {
  // A step begins before its samples: the rise between two samples belongs to the time between them, not between their steps.
  const points = series.points.map((point) => ({ time: parseTime(point.last_sample_time ?? point.time), value: point.value }));
  if (series.type !== 'METRIC_TYPE_COUNTER') return points;
  return points.slice(1).map(({ time, value }, at) => {
    const before = points[at];
    const risen = value >= before.value ? value - before.value : value;
    return { time, value: risen / ((time - before.time) / SECOND) };
  });
}

function usualDistance(points) {
  const distances = points.slice(1).map((point, at) => point.time - points[at].time).sort((a, b) => a - b);
  return distances[Math.floor(distances.length / 2)] ?? 0;
}

/** The line between two points that are not too far apart, at the given times; null elsewhere. */
function valuesAt(points, times, distanceMax) {
  let next = 0;
  return times.map((time) => {
    while (next < points.length && points[next].time < time) next += 1;
    const after = points[next];
    if (after?.time === time) return after.value;
    const before = points[next - 1];
    if (!after || !before || after.time - before.time > distanceMax) return null;
    return before.value + ((after.value - before.value) * (time - before.time)) / (after.time - before.time);
  });
}

const labelOf = (labels) => Object.entries(labels).map(([name, value]) => `${name}=${value}`).join(' ') || 'value';

const plain = new Intl.NumberFormat('en', { maximumSignificantDigits: 4 });
const short = new Intl.NumberFormat('en', { notation: 'compact', maximumSignificantDigits: 3 });
const tiny = (value) => value.toExponential(1);

function number(value) {
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e15)) return tiny(value);
  return size < 10_000 ? plain.format(value) : short.format(value);
}
