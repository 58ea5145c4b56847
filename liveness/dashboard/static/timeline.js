// The timeline of a worker: lanes for leases, sessions, commands and more, with time from left to right. Drag to zoom.
import { html, useLayoutEffect, useMemo, useRef, useState } from './html.js';
import { useTick } from './ticker.js';
import { DAY, HOUR, MINUTE, SECOND, serverNow, showDuration, showTime } from './time.js';
import { counted } from './words.js';

const LABELS = 92;
const LANE = 34;
const BAR = 20;
const AXIS = 26;
const LANES = ['status', 'lease', 'session', 'orders', 'holds', 'heartbeats'];
/** Lanes that are hidden while they are empty. */
const OPTIONAL = { status: (spans) => spans.statuses.length > 0, orders: (spans) => spans.orders.length > 0, holds: (spans) => spans.held.some(({ count }) => count > 0) };
const MARK = { birth: '●', session: '◆', return: '▲', end: '✕', closed: '■' };
const NOTHING = [];
const LEAST_MS = SECOND;
const TICKS_MS = [
  SECOND, 5 * SECOND, 15 * SECOND, MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 6 * HOUR, DAY, 7 * DAY, 30 * DAY, 365 * DAY,
]; // prettier-ignore

/** spans: the result of `spansOf`. beats: the known times of heartbeats. silences: [{from, to}]. without: lanes that are not drawn. */
export function Timeline({ spans, beats, silences, without = NOTHING }) {
  const box = useRef();
  const width = useWidth(box);
  const [zoom, setZoom] = useState(null);
  const [now, setNow] = useState(serverNow);
  useTick(() => setNow((was) => (serverNow() - was > SECOND ? serverNow() : was)), []);
  const [tip, setTip] = useState(null);
  const lanes = LANES.filter((lane) => !without.includes(lane) && (OPTIONAL[lane]?.(spans) ?? true));
  const height = lanes.length * LANE + AXIS;
  const y = (lane) => lanes.indexOf(lane) * LANE;
  const full = fullRange(spans, now);
  const range = zoom === null ? full : zoom.last ? { from: Math.max(full.from, now - zoom.last), to: full.to } : zoom;
  const x = (time) => LABELS + ((Math.min(Math.max(time, range.from), range.to) - range.from) / (range.to - range.from)) * (width - LABELS - 8);
  const drag = useDrag(box, width, range, setZoom);
  const shapes = useMemo(() => shapesOf(spans, beats, silences, now), [spans, beats, silences, now]);
  const inside = (from, to) => to >= range.from && from <= range.to;

  return html`<div class="timeline">
    <div class="timeline-head"><h2>Timeline</h2><${Zoom} zoom=${zoom} onZoom=${setZoom} range=${range} full=${full} /></div>
    <div class="timeline-box" ref=${box} ...${drag.handlers}>
      <svg class="timeline-picture" width=${width} height=${height} role="img" aria-label=${summary(spans, now)} onPointerLeave=${() => setTip(null)}>
        <defs>
          <pattern id="absent" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class="t-hatch" width="2.5" height="7" /></pattern>
        </defs>
        ${lanes.map((lane) => html`<g key=${lane} transform=${`translate(0 ${y(lane) + LANE / 2})`}><line class="t-line" x1=${LABELS} x2=${width - 8} /><text class="t-label" y="4">${lane}</text></g>`)}
        <${Axis} range=${range} x=${x} width=${width} height=${height} />
        ${shapes.bars.filter((bar) => inside(bar.from, bar.to)).map((bar) => html`<${Bar} key=${bar.key} bar=${bar} x=${x} top=${y(bar.lane) + (LANE - BAR) / 2} onTip=${setTip} />`)}
        ${shapes.steps && html`<path class="t-held" d=${heldPath(shapes.steps, x, range, y('holds') + LANE - 6)} onPointerMove=${(event) => setTip(at(event, `holds ${counted(heldAt(shapes.steps, timeAt(event, box, width, range)), 'activity', 'activities')}`))} />`}
        ${shapes.ticks.filter((time) => inside(time, time)).map((time) => html`<line key=${time} class="t-beat" x1=${x(time)} x2=${x(time)} y1=${y('heartbeats') + 9} y2=${y('heartbeats') + 25} />`)}
        ${shapes.marks.filter(({ time }) => inside(time, time)).map(
          (mark) => html`<text key=${mark.key} class=${`t-mark ${mark.kind} ${mark.bad ? 'bad' : ''}`} x=${x(mark.time)} y=${y('lease') + LANE / 2 + 5} text-anchor="middle"
            onPointerMove=${(event) => setTip(at(event, `${showTime(mark.time)}  ${mark.text}`))}>${MARK[mark.kind]}</text>`,
        )}
        ${drag.band && html`<rect class="t-band" x=${drag.band.x} y="0" width=${drag.band.width} height=${height - AXIS} />`}
      </svg>
      ${tip && html`<div class="tip" style=${{ left: `${tip.x}px`, top: `${tip.y}px` }}><bdi>${tip.text}</bdi></div>`}
    </div>
    <p class="timeline-key">${[['birth', 'registered'], ['session', 'new session'], ['return', 'came back'], ['end', 'left'], ['closed', 'cleaned up']].map(
      ([kind, label]) => html`<span key=${kind}><i class=${`key-mark ${kind}`}>${MARK[kind]}</i> ${label}</span>`)} <span class="timeline-hint">drag to look closer</span></p>
  </div>`;
}

const LASTS = [
  [HOUR, 'last hour'],
  [10 * MINUTE, 'last 10 min'],
  [MINUTE, 'last minute'],
];

function Zoom({ zoom, onZoom, range, full }) {
  const lasts = LASTS.filter(([ms]) => ms < full.to - full.from);
  if (!lasts.length && !zoom) return null;
  return html`<div class="segments" role="group" aria-label="Part of the timeline">
    <button type="button" aria-pressed=${zoom === null} onClick=${() => onZoom(null)}>all</button>
    ${lasts.map(([last, label]) => html`<button key=${label} type="button" aria-pressed=${zoom?.last === last} onClick=${() => onZoom({ last })}>${label}</button>`)}
    ${zoom && !zoom.last && html`<button type="button" aria-pressed="true">${showDuration(range.to - range.from)}</button>`}
  </div>`;
}

function fullRange(spans, now) {
  const to = spans.closed ?? now;
  const from = Math.min(spans.from ?? now, to - LEAST_MS);
  const margin = (to - from) * 0.02;
  return { from: from - margin, to: to + margin };
}

/** All bars, ticks and marks of the lanes, visible or not. */
function shapesOf(spans, beats, silences, now) {
  const bars = [];
  const add = (lane, tone, span, label, text) =>
    bars.push({ key: `${lane} ${tone} ${span.from}`, lane, tone, from: span.from, to: span.to ?? now, label, text });
  for (const one of spans.statuses) add('status', one.status, one, one.status, `${one.status} for ${showDuration((one.to ?? now) - one.from)}${one.reason ? `: ${one.reason}` : ''}`);
  for (const lease of spans.leases) {
    const ending = lease.to === null ? 'goes on' : `ended: ${lease.reason}`;
    add('lease', 'lease', lease, `lease ${lease.epoch}`, `lease ${lease.epoch}, ${showDuration((lease.to ?? now) - lease.from)}, ${ending}`);
  }
  for (const gap of spans.absences) {
    add('lease', 'absent', gap, gap.reason, `inactive for ${showDuration((gap.to ?? spans.closed ?? now) - gap.from)}: ${gap.reason}`);
  }
  spans.sessions.forEach((one, at) => add('session', at % 2 ? 'session odd' : 'session', one, one.id, `session ${one.id || 'without a name'}`));
  for (const order of spans.orders) add('orders', order.kind, order, order.kind, `${order.kind}${order.reason ? `: ${order.reason}` : ''}`);
  for (const one of silences) add('heartbeats', 'silence', one, 'silence', `no heartbeat for ${showDuration(one.to - one.from)}`);
  const marks = spans.marks.map((mark, at) => ({ ...mark, key: `${mark.time} ${at}` }));
  const steps = spans.held.some(({ count }) => count > 0) ? [...spans.held, { time: spans.closed ?? now, count: spans.held.at(-1).count }] : null;
  return { bars, marks, steps, ticks: beats };
}

function Bar({ bar, x, top, onTip }) {
  const left = x(bar.from);
  const wide = Math.max(2, x(bar.to) - left);
  const room = Math.floor((wide - 22) / 6.6);
  const label = bar.label.length > room ? (room > 4 ? `${bar.label.slice(0, room - 1)}…` : '') : bar.label;
  return html`<g class=${`t-bar ${bar.tone}`} onPointerMove=${(event) => onTip(at(event, `${showTime(bar.from)}  ${bar.text}`))}>
    <rect x=${left} y=${top} width=${wide} height=${BAR} rx="4" />
    ${label && html`<text x=${left + 14} y=${top + BAR / 2 + 4}>${label}</text>`}
  </g>`;
}

function Axis({ range, x, width, height }) {
  const wanted = (range.to - range.from) / Math.max(2, (width - LABELS) / 110);
  const step = TICKS_MS.find((ms) => ms >= wanted) ?? TICKS_MS.at(-1);
  const zone = new Date(range.from).getTimezoneOffset() * MINUTE;
  const first = Math.ceil((range.from - zone) / step) * step + zone;
  const ticks = [];
  for (let time = first; time <= range.to && ticks.length < 50; time += step) ticks.push(time);
  return html`<g class="t-axis">
    ${ticks.map(
      (time) => html`<g key=${time}><line x1=${x(time)} x2=${x(time)} y1="0" y2=${height - AXIS} /><text x=${x(time)} y=${height - 8} text-anchor="middle">${showTime(time)}</text></g>`,
    )}
  </g>`;
}

/** A step line of the number of held activities. */
function heldPath(steps, x, range, base) {
  const most = Math.max(...steps.map(({ count }) => count));
  const y = (count) => base - (count / most) * (LANE - 12);
  const seen = steps.filter(({ time }, at) => time >= range.from || steps[at + 1]?.time >= range.from);
  let path = `M ${x(seen[0].time)} ${base}`;
  let level = 0;
  for (const { time, count } of seen) {
    if (time > range.to) break;
    path += ` L ${x(time)} ${y(level)} L ${x(time)} ${y(count)}`;
    level = count;
  }
  const end = x(Math.min(range.to, seen.at(-1).time));
  return `${path} L ${end} ${y(level)} L ${end} ${base} Z`;
}

const heldAt = (steps, time) => steps.findLast((step) => step.time <= time)?.count ?? 0;

function timeAt(event, box, width, range) {
  const left = event.clientX - box.current.getBoundingClientRect().left;
  return range.from + ((left - LABELS) / (width - LABELS - 8)) * (range.to - range.from);
}

/** A tooltip beside the pointer, inside the timeline. */
function at(event, text) {
  const box = event.currentTarget.closest('.timeline-box').getBoundingClientRect();
  return { x: Math.min(event.clientX - box.left + 12, Math.max(0, box.width - 280)), y: event.clientY - box.top + 14, text };
}

function useWidth(box) {
  const [width, setWidth] = useState(800);
  useLayoutEffect(() => {
    const sized = new ResizeObserver(() => setWidth(Math.max(320, box.current.clientWidth)));
    sized.observe(box.current);
    return () => sized.disconnect();
  }, []);
  return width;
}

function useDrag(box, width, range, onRange) {
  const [drag, setDrag] = useState(null);
  const leftOf = (event) => Math.max(LABELS, Math.min(width - 8, event.clientX - box.current.getBoundingClientRect().left));
  const time = (left) => range.from + ((left - LABELS) / (width - LABELS - 8)) * (range.to - range.from);
  const handlers = {
    onPointerDown: (event) => event.button === 0 && event.pointerType === 'mouse' && setDrag({ from: leftOf(event), to: leftOf(event) }),
    onPointerMove: (event) => drag && setDrag({ ...drag, to: leftOf(event) }),
    onPointerUp: () => {
      if (!drag) return;
      const [from, to] = [time(Math.min(drag.from, drag.to)), time(Math.max(drag.from, drag.to))];
      setDrag(null);
      if (Math.abs(drag.to - drag.from) > 6 && to - from >= LEAST_MS) onRange({ from, to });
    },
    onDblClick: () => onRange(null),
  };
  const band = drag && { x: Math.min(drag.from, drag.to), width: Math.abs(drag.to - drag.from) };
  return { handlers, band };
}

function summary(spans, now) {
  const parts = [
    counted(spans.leases.length, 'lease'),
    counted(spans.sessions.length, 'session'),
    counted(spans.absences.length, 'absence'),
    counted(spans.deaths.length, 'death'),
  ];
  const over = spans.closed === null ? `known for ${showDuration(now - (spans.from ?? now))}` : 'cleaned up';
  return `Timeline: ${parts.join(', ')}; ${over}`;
}
