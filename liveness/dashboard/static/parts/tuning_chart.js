// How soon deaths are found, and how many are false, by lease. The one falls where the other rises.
import { html } from '../html.js';
import { parseDuration, showDuration } from '../time.js';
import { count, counted } from '../words.js';

const WIDTH = 760;
const HEIGHT = 220;
const LEFT = 52;
const RIGHT = 44;
const TOP = 14;
const BOTTOM = 34;
const BAR = 22;

/** Only leases have an order, so only they are drawn; graces and storms are in the table. */
export function TuningChart({ outcomes, best }) {
  const points = outcomes
    .map((outcome, at) => ({
      lease: parseDuration(outcome.usual_lease),
      found: parseDuration(outcome.detection_median) ?? 0,
      wrong: Number(outcome.false_deaths),
      today: at === 0,
      best: at === best,
      others: Boolean(outcome.disconnect_grace || outcome.storm_hold || (outcome.storm_share ?? null) !== null),
    }))
    .filter((point) => !point.others)
    .sort((one, other) => one.lease - other.lease);
  if (points.length < 2) return null;
  const foundMost = Math.max(1, ...points.map((point) => point.found));
  const wrongMost = Math.max(1, ...points.map((point) => point.wrong));
  const step = (WIDTH - LEFT - RIGHT) / points.length;
  const x = (at) => LEFT + step * (at + 0.5);
  const down = (share) => TOP + (1 - share) * (HEIGHT - TOP - BOTTOM);
  const line = points.map((point, at) => `${at ? 'L' : 'M'}${x(at).toFixed(1)} ${down(point.found / foundMost).toFixed(1)}`).join('');
  const described = points.map((point) => `lease ${showDuration(point.lease)}: found after ${showDuration(point.found)}, ${counted(point.wrong, 'false death')}`).join('; ');
  return html`<figure class="tuning-chart">
    <figcaption class="legend"><span class="legend-item"><i class="swatch tone-accent"></i>found after (median)</span><span class="legend-item"><i class="swatch tone-bad"></i>false deaths</span></figcaption>
    <svg viewBox=${`0 0 ${WIDTH} ${HEIGHT}`} role="img" aria-label=${described}>
      ${[0, 0.5, 1].map(
        (share) => html`<g key=${share}>
          <line class="grid" x1=${LEFT} x2=${WIDTH - RIGHT} y1=${down(share)} y2=${down(share)} />
          <text x=${LEFT - 8} y=${down(share) + 4} text-anchor="end">${showDuration(share * foundMost)}</text>
          ${(share !== 0.5 || wrongMost % 2 === 0) && html`<text x=${WIDTH - RIGHT + 8} y=${down(share) + 4}>${count(Math.round(share * wrongMost))}</text>`}
        </g>`,
      )}
      ${points.map(
        (point, at) => html`<g key=${point.lease}>
          <title>${`lease ${showDuration(point.lease)}: found after ${showDuration(point.found)}, ${counted(point.wrong, 'false death')}`}</title>
          ${point.best && html`<rect class="best" x=${x(at) - step / 2 + 2} y=${TOP - 8} width=${step - 4} height=${HEIGHT - TOP - 2} rx="6" />`}
          <rect class="wrong" x=${x(at) - BAR / 2} width=${BAR} y=${down(point.wrong / wrongMost)} height=${down(0) - down(point.wrong / wrongMost)} />
          <text x=${x(at)} y=${HEIGHT - 18} text-anchor="middle" class=${point.today || point.best ? 'strong' : ''}>${showDuration(point.lease)}</text>
          ${(point.today || point.best) && html`<text x=${x(at)} y=${HEIGHT - 5} text-anchor="middle">${point.best ? (point.today ? 'today, keep' : 'recommended') : 'today'}</text>`}
        </g>`,
      )}
      <path class="found" d=${line} />
      ${points.map((point, at) => html`<circle key=${point.lease} class="found" cx=${x(at)} cy=${down(point.found / foundMost)} r="4" />`)}
    </svg>
  </figure>`;
}
