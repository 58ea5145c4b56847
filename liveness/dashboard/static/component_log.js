// What a component wrote: the last lines, and new ones as they come. The supervisor of the group is asked for them.
import { get, inNamespace } from './api.js';
import { html, useEffect, useLayoutEffect, useRef, useState } from './html.js';
import { Empty, Loading } from './parts/notice.js';
import { usePolling } from './ticker.js';
import { SECOND } from './time.js';

const ASK_EVERY_MS = 2 * SECOND;
const FIRST_LINES = 200;
const LINES_MAX = 1_000;

/** → {lines: null until there is an answer, error} */
export function useLog(ns, id, asks) {
  const [state, setState] = useState({ lines: null, error: null });
  const after = useRef('');
  useEffect(() => {
    after.current = '';
    setState({ lines: null, error: null });
  }, [ns, id]);
  usePolling(async (signal) => {
    if (!asks) return;
    const query = { lines: after.current ? LINES_MAX : FIRST_LINES, after: after.current };
    try {
      const answer = await get(inNamespace(ns, `components/${encodeURIComponent(id)}/logs`), query, { signal });
      after.current = answer.next || after.current;
      setState((was) => (was.lines && !was.error && !answer.lines.length ? was : { lines: [...(was.lines ?? []), ...answer.lines].slice(-LINES_MAX), error: null }));
    } catch (error) {
      if (!signal.aborted) setState((was) => ({ ...was, error }));
    }
  }, ASK_EVERY_MS, [ns, id, asks]);
  return state;
}

/** The end of it stays in sight, unless the user has scrolled up. */
export function Log({ lines, error }) {
  const box = useRef();
  const atEnd = useRef(true);
  useLayoutEffect(() => {
    if (box.current && atEnd.current) box.current.scrollTop = box.current.scrollHeight;
  }, [lines]);
  const scrolled = () => {
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    atEnd.current = scrollHeight - scrollTop - clientHeight < 30;
  };
  if (!lines) return error ? html`<${Empty}>${error.message}<//>` : html`<${Loading} />`;
  return html`${error && html`<p class="mute">${error.message}</p>`}
    ${lines.length
      ? html`<pre class="log" ref=${box} tabindex="0" role="log" aria-label="Output" onScroll=${scrolled}>${lines.map(readable).join('\n')}</pre>`
      : html`<${Empty}>It has written nothing.<//>`}`;
}

const COLOURS = /\u001b\[[0-9;?]*[ -/]*[@-~]/g;
const CONTROLS = /[\u0000-\u0008\u000a-\u001f]/g;

const PREFIX = /^(\d{4}-\d\d-\d\dT[\d:.]+Z) ([oe]) /;

/** Of its streams, only stderr is named. Colour codes of terminals are left out; other control characters are shown as their pictures. */
export function readable(line) {
  return line.replace(PREFIX, (_, time, stream) => `${time} ${stream === 'e' ? 'stderr: ' : ''}`).replace(COLOURS, '').replace(CONTROLS, (one) => String.fromCharCode(0x2400 + one.charCodeAt(0)));
}
