// Charts over time. The charts of a page share their cursor; the legend shows the values under it.
import { useCell } from './cell.js';
import { html, useEffect, useLayoutEffect, useRef, useState } from './html.js';
import { theme } from './theme.js';
import { MINUTE, showClock } from './time.js';
import { brief } from './words.js';
import uPlot from './vendor/uplot.js';

const HEIGHT = 176;
const FONT = '11px system-ui, sans-serif';
/** Distances between grid lines for counts, which have no fractions. */
const INTEGER_STEPS = [1, 2, 5].flatMap((digit) => Array.from({ length: 12 }, (_, power) => digit * 10 ** power)).sort((a, b) => a - b);
const TENTH_STEPS = [0.1, 0.2, 0.5, ...INTEGER_STEPS];
const together = uPlot.sync('fleet');

/**
 * series: [{label, tone, of(sample), area, bars, steps, quiet}]; tone names a colour of the style sheet, a value of a series
 * with steps holds until the next one, and a quiet series is hidden until the user selects it in the legend.
 * integers: values are counts. anyScale: values may be small. The line is interrupted where samples are missing because the server did not run.
 */
export function Chart({ title, note, samples, intervalMs, rangeMs, series, show = brief, integers = true, anyScale = false }) {
  const container = useRef();
  const values = useRef([]);
  const plot = useRef(null);
  const [off, setOff] = useState(() => new Set(series.filter((one) => one.quiet).map((one) => one.label)));
  const name = useCell(theme);
  const data = withGaps(samples, series, intervalMs);

  useLayoutEffect(() => {
    const colours = getComputedStyle(document.documentElement);
    const width = container.current.clientWidth;
    const writeLegend = (u) => write(values.current, u, series, show);
    plot.current = new uPlot({ ...options(series, colours, show, width, intervalMs, integers, anyScale), hooks: { setCursor: [writeLegend], setData: [writeLegend] } }, null, container.current);
    const sized = new ResizeObserver(() => plot.current.setSize({ width: container.current.clientWidth, height: HEIGHT }));
    sized.observe(container.current);
    return () => {
      sized.disconnect();
      plot.current.destroy();
    };
  }, [name, intervalMs]);

  useEffect(() => {
    // A server that has just started has fewer samples than the range asks for.
    const to = samples.at(-1)?.time ?? Date.now();
    const from = Math.min(to - MINUTE, Math.max(to - rangeMs, samples[0]?.time ?? 0));
    plot.current.setData(data, false);
    plot.current.setScale('x', { min: from / 1_000, max: to / 1_000 });
  }, [samples, rangeMs, name, intervalMs]);

  // After the data: without any, this would fix the scale of the values.
  useEffect(() => {
    series.forEach((one, at) => plot.current.setSeries(at + 1, { show: !off.has(one.label) }));
  }, [off, name, intervalMs]);

  const flip = (label) => setOff((was) => new Set(was.has(label) ? [...was].filter((one) => one !== label) : [...was, label]));
  return html`<figure class="card chart">
    <figcaption><h3>${title}</h3>${note && html`<span class="mute">${note}</span>`}</figcaption>
    <div class="legend">
      ${series.map(
        (one, at) => html`<button key=${one.label} type="button" class="legend-item" aria-pressed=${!off.has(one.label)} onClick=${() => flip(one.label)}>
          <i class=${`swatch tone-${one.tone}`} aria-hidden="true"></i>${one.label} <b ref=${(node) => (values.current[at] = node)}></b>
        </button>`,
      )}
    </div>
    <div class="chart-place" ref=${container} role="img" aria-label=${`${title} over time`}></div>
  </figure>`;
}

function withGaps(samples, series, intervalMs) {
  const columns = [[], ...series.map(() => [])];
  let last = null;
  for (const sample of samples) {
    if (last !== null && sample.time - last > 3 * intervalMs) {
      columns[0].push((last + intervalMs) / 1_000);
      series.forEach((_, at) => columns[at + 1].push(null));
    }
    columns[0].push(sample.time / 1_000);
    series.forEach((one, at) => columns[at + 1].push(one.of(sample)));
    last = sample.time;
  }
  return columns;
}

/** The value under the cursor, or else the newest one. */
function write(nodes, u, series, show) {
  const at = u.cursor.idx ?? u.data[0].length - 1;
  series.forEach((_, number) => {
    const value = u.data[number + 1]?.[at];
    if (nodes[number]) nodes[number].textContent = value === null || value === undefined ? '–' : show(value);
  });
}

function options(series, colours, show, width, intervalMs, integers, anyScale) {
  const colour = (tone) => colours.getPropertyValue(`--${tone}`).trim();
  const axis = { font: FONT, stroke: colour('mute'), grid: { stroke: colour('line'), width: 1 }, ticks: { show: false } };
  return {
    width,
    height: HEIGHT,
    padding: [8, 22, 0, 0],
    legend: { show: false },
    cursor: { sync: { key: together.key }, drag: { x: false, y: false }, points: { size: 7 } },
    scales: { x: { time: true }, y: { range: anyScale ? fullRange : (u, min, max) => [Math.min(0, (min ?? 0) * 1.1), Math.max(1, (max ?? 0) * 1.1)] } },
    axes: [
      { ...axis, size: 24, gap: 4, space: 74, values: (u, splits, at, space, step) => splits.map((time) => showClock(time * 1_000, step < 60)) },
      { ...axis, size: 46, gap: 4, space: 34, ...(anyScale ? {} : { incrs: integers ? INTEGER_STEPS : TENTH_STEPS }), values: (u, splits) => splits.map(show) },
    ],
    series: [
      {},
      ...series.map((one) => ({
        label: one.label,
        stroke: colour(one.tone),
        width: 1.5,
        fill: one.area || one.bars ? `${colour(one.tone)}${one.bars ? 'b0' : '26'}` : undefined,
        // A line needs two points, and a server that has just started may have one sample.
        points: { show: (u) => u.data[0].length < 3, size: 5 },
        paths: one.bars ? barsOf(intervalMs) : one.steps ? uPlot.paths.stepped({ align: 1 }) : uPlot.paths.linear(),
      })),
    ],
  };
}

/** All values and 0, with some room. */
function fullRange(u, min, max) {
  const low = Math.min(0, min ?? 0);
  const high = Math.max(0, max ?? 0);
  const room = (high - low || 1) * 0.1;
  return [low < 0 ? low - room : 0, high > 0 || low === 0 ? high + room : 0];
}

/** Bars are slightly narrower than an interval. */
function barsOf(intervalMs) {
  return (u, at, from, to) => {
    const width = Math.max(1, Math.abs(u.valToPos(intervalMs / 1_000, 'x') - u.valToPos(0, 'x')) * 0.8);
    return uPlot.paths.bars({ size: [1, Math.max(2, width), 1], align: -1 })(u, at, from, to);
  };
}
