// Names that others chose: isolated, so that their direction stays their own, cut where there is no room, whole on hover.
import { html } from '../html.js';
import { activityHref, workerHref } from '../route.js';
import { showAgo, showTime, showTimeExactly } from '../time.js';
import { activityName } from '../words.js';

export function Name({ children, plain = false }) {
  const text = String(children ?? '');
  return html`<bdi class=${plain ? 'name' : 'name mono'} title=${text}>${text || '–'}</bdi>`;
}

export function WorkerLink({ ns, name }) {
  return name ? html`<a class="link" href=${workerHref(ns, name)}><${Name}>${name}<//></a>` : html`<span class="mute">–</span>`;
}

export function ActivityLink({ ns, id }) {
  return html`<a class="link" href=${activityHref(ns, id)}><${Name}>${activityName(id)}<//></a>`;
}

/** The point in time, or how long ago it was; the other on hover. */
export function Time({ ms, ago = false }) {
  if (ms === null || ms === undefined) return html`<span class="mute">–</span>`;
  return html`<time datetime=${new Date(ms).toISOString()} title=${showTimeExactly(ms)}>${ago ? showAgo(ms) : showTime(ms)}</time>`;
}
