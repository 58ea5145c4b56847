// All workers of a namespace. Only visible rows are drawn: ten thousand workers cost no more than fifty.
import { useCell } from '../cell.js';
import { html, useEffect, useMemo, useRef, useState } from '../html.js';
import { Icon } from '../icons.js';
import { reloadCount, onEvents } from '../live.js';
import { Chips, listOf } from '../parts/chips.js';
import { Failure } from '../parts/notice.js';
import { WorkerGrid } from '../parts/worker_grid.js';
import { Roster, WORKERS_MAX } from '../roster.js';
import { adjust } from '../route.js';
import { count, counted } from '../words.js';
import { matcher, orderOf } from '../worker_filter.js';

const STATES = ['active', 'suspect', 'inactive', 'cleaned up'];
const ADDRESS_AFTER_MS = 300;

export function Workers({ ns, params }) {
  const generation = useCell(reloadCount);
  const roster = useMemo(() => new Roster(ns), [ns, generation]);
  useEffect(() => {
    roster.start();
    const unsubscribe = onEvents((events) => roster.applyEvents(events));
    return () => {
      unsubscribe();
      roster.stop();
    };
  }, [roster]);

  const version = useCell(roster.version);
  const progress = useCell(roster.progress);
  const [text, setText, write] = useTextInAddress(params.q ?? '');
  const chosen = listOf(params.state, STATES);
  const sort = params.sort ?? 'key';
  const rows = useMemo(
    () => [...roster.rows.values()].filter(matcher(text, chosen)).sort(orderOf(sort)),
    [roster, version, text, params.state, sort],
  );
  const counts = useMemo(() => countsOf(roster.rows), [roster, version]);
  const total = roster.rows.size;

  return html`<div class="stack fill">
    <header class="view-head">
      <h1 tabindex="-1">Workers</h1>
      <span class="mute" role="status" aria-live="polite">
        ${rows.length === total ? counted(total, 'worker') : `${count(rows.length)} of ${counted(total, 'worker')}`}
        ${progress.loading ? ' · loading …' : ''}${total >= WORKERS_MAX ? ` · the first ${count(WORKERS_MAX)} only` : ''}
      </span>
    </header>
    <div class="tools">
      <label class="search"><${Icon} name="search" /><span class="visually-hidden">Filter workers</span>
        <input type="search" value=${text} placeholder="key, host, build, queue … or host:db-3" autocomplete="off" spellcheck=${false}
          onInput=${(event) => setText(event.target.value)} onKeyDown=${intoTable} onBlur=${write} />
        <kbd>/</kbd>
      </label>
      <${Chips} label="States" choices=${STATES} chosen=${chosen} counts=${counts} onChange=${(next) => adjust({ state: next.join(',') })} />
    </div>
    ${progress.error && html`<${Failure} error=${progress.error} />`}
    <${WorkerGrid} ns=${ns} rows=${rows} sort=${sort} onSort=${(next) => adjust({ sort: next === 'key' ? null : next })} onVisible=${(keys) => roster.show(keys)}
      nothing=${progress.loading ? 'Loading …' : total ? 'No worker matches.' : 'No workers here. They show up by themselves with their first heartbeat.'} />
  </div>`;
}

/** The filter applies at once; the address follows when the user stops typing or leaves the field. */
function useTextInAddress(initial) {
  const [text, setText] = useState(initial);
  const own = useRef(initial);
  useEffect(() => {
    // The user went back or followed a link.
    if (initial !== own.current) {
      own.current = initial;
      setText(initial);
    }
  }, [initial]);
  const write = () => {
    if (own.current === text) return;
    own.current = text;
    adjust({ q: text });
  };
  useEffect(() => {
    const timer = setTimeout(write, ADDRESS_AFTER_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return [text, setText, write];
}

function intoTable(event) {
  if (event.key !== 'ArrowDown' && event.key !== 'Enter') return;
  event.preventDefault();
  document.querySelector('[role=grid]')?.focus();
}

function countsOf(rows) {
  const counts = Object.fromEntries(STATES.map((state) => [state, 0]));
  for (const row of rows.values()) {
    counts[row.state]++;
    if (row.suspect) counts.suspect++;
  }
  return counts;
}
