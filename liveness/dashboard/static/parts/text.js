// Names from users: isolated from the surrounding text direction, truncated where there is no room, whole on hover.
import { html, useRef } from '../html.js';
import { connection } from '../live.js';
import { activityHref, componentHref, workerHref } from '../route.js';
import { useTick } from '../ticker.js';
import { serverNow, showAgo, showDuration, showTime, showTimeExactly } from '../time.js';
import { activityName } from '../words.js';

export function Name({ children, plain = false }) {
  const text = String(children ?? '');
  return html`<bdi class=${plain ? 'name' : 'name mono'} title=${text}>${text || '–'}</bdi>`;
}

export function WorkerLink({ ns, name }) {
  return name ? html`<a class="link" href=${workerHref(ns, name)}><${Name}>${name}<//></a>` : html`<span class="mute">–</span>`;
}

export function ComponentLink({ ns, id }) {
  return html`<a class="link" href=${componentHref(ns, id)}><${Name}>${id}<//></a>`;
}

export function ActivityLink({ ns, id }) {
  return html`<a class="link" href=${activityHref(ns, id)}><${Name}>${activityName(id)}<//></a>`;
}

/** A point in time, or how long ago it was; the exact time on hover. */
export function Time({ ms, ago = false }) {
  if (ms === null || ms === undefined) return html`<span class="mute">–</span>`;
  if (ago) return html`<${Moving} ms=${ms} show=${showAgo} />`;
  return html`<time datetime=${new Date(ms).toISOString()} title=${showTimeExactly(ms)}>${showTime(ms)}</time>`;
}

const sinceThen = (ms) => showDuration(Math.max(0, serverNow() - ms));

/** How long it is since a point in time. */
export function Elapsed({ ms }) {
  return ms === null || ms === undefined ? html`<span class="mute">–</span>` : html`<${Moving} ms=${ms} show=${sinceThen} />`;
}

/** Counts on by itself while the page is connected to the event stream. */
function Moving({ ms, show }) {
  const element = useRef();
  useTick(() => {
    const node = element.current;
    if (node && (connection.value.state === 'live' || !node.textContent)) node.textContent = show(ms);
  }, [ms]);
  return html`<time ref=${element} datetime=${new Date(ms).toISOString()} title=${showTimeExactly(ms)}></time>`;
}
