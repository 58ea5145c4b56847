// A table that draws only its visible rows and can be navigated with the keyboard.
import { html, useEffect, useLayoutEffect, useRef, useState } from '../html.js';
import { Icon } from '../icons.js';
import { marksOf } from '../roster.js';
import { go, workerHref } from '../route.js';
import { count } from '../words.js';
import { Badge } from './badge.js';
import { LeaseBar } from './lease_bar.js';
import { Empty } from './notice.js';
import { Name } from './text.js';

const COLUMNS = [
  ['key', 'worker'],
  ['state', 'state'],
  ['lease', 'lease'],
  ['held', 'holds'],
  ['queue', 'task queue'],
  ['build', 'build'],
  ['host', 'host'],
];
const narrow = matchMedia('(max-width: 760px)');
/** The same as in the style sheet. */
const ROW_HEIGHT = { wide: 40, narrow: 92 };
const HEAD_HEIGHT = 36;
const SPARE_ROWS = 8;

/** The scroll position of each table by its address, restored when the user comes back. */
const scrollPositions = new Map();

export function WorkerGrid({ ns, rows, sort, onSort, onVisible, nothing }) {
  const box = useRef();
  const view = useView(box);
  const [active, setActive] = useState(0);
  const at = Math.min(active, rows.length - 1);
  const from = Math.max(0, Math.floor(view.top / view.rowHeight) - SPARE_ROWS);
  const to = Math.min(rows.length, Math.ceil((view.top + view.height) / view.rowHeight) + SPARE_ROWS);
  const seen = rows.slice(from, to);

  useEffect(() => onVisible(seen.map((row) => row.key)));
  useScrollPosition(box, view, rows.length);

  const move = (next) => {
    const target = Math.max(0, Math.min(rows.length - 1, next));
    setActive(target);
    reveal(box.current, target, view);
  };
  const pressed = (event) => {
    const page = Math.max(1, Math.floor(view.height / view.rowHeight) - 1);
    const steps = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: rows.length - 1 };
    if (event.key in steps && event.target === box.current) move(steps[event.key]);
    else if (event.key === 'Enter' && rows[at] && event.target === box.current) go('worker', { ns, key: rows[at].key });
    else return;
    event.preventDefault();
  };

  return html`<div class="grid card">
    <div class="grid-body" ref=${box} role="grid" tabindex="0" aria-label="Workers" aria-rowcount=${rows.length + 1}
      aria-activedescendant=${rows[at] ? `worker-${at}` : undefined} onKeyDown=${pressed}>
      <div class="grid-head" role="row" aria-rowindex="1">
        ${COLUMNS.map(([name, label]) => html`<${Heading} key=${name} name=${name} label=${label} sort=${sort} onSort=${onSort} />`)}
      </div>
      <div class="grid-space" role="presentation" style=${{ height: `${rows.length * view.rowHeight}px` }}>
        ${seen.map((row, offset) => {
          const index = from + offset;
          return html`<${Row} key=${row.key} ns=${ns} row=${row} index=${index} top=${index * view.rowHeight} active=${index === at} onPick=${setActive} />`;
        })}
      </div>
      ${rows.length === 0 && html`<${Empty}>${nothing}<//>`}
    </div>
  </div>`;
}

function Heading({ name, label, sort, onSort }) {
  const on = sort.replace(/^-/, '') === name;
  const down = on && sort.startsWith('-');
  return html`<div role="columnheader" class=${`col-${name}`} aria-sort=${on ? (down ? 'descending' : 'ascending') : undefined}>
    <button type="button" class=${`grid-heading ${on ? 'on' : ''}`} title=${`Sort by ${label}`} onClick=${() => onSort(on && !down ? `-${name}` : name)}>
      ${label}${on && html`<${Icon} name=${down ? 'down' : 'up'} />`}
    </button>
  </div>`;
}

function Row({ ns, row, index, top, active, onPick }) {
  const marks = marksOf(row);
  return html`<div id=${`worker-${index}`} class=${`grid-row ${active ? 'on' : ''}`} role="row" aria-rowindex=${index + 2} aria-selected=${active}
    style=${{ transform: `translateY(${top}px)` }} onPointerDown=${() => onPick(index)}>
    <div role="gridcell" class="col-key"><a class="link" tabindex="-1" href=${workerHref(ns, row.key)}><${Name}>${row.key}<//></a></div>
    <div role="gridcell" class="col-state"><${Badge} word=${row.state} title=${row.reason} />${marks.map((mark) => html`<${Badge} key=${mark} word=${mark} />`)}</div>
    <div role="gridcell" class="col-lease">
      ${row.state === 'active' && row.deadline !== null
        ? html`<${LeaseBar} deadline=${row.deadline} leaseMs=${row.leaseMs} suspect=${row.suspect} />`
        : html`<span class="mute">${row.reason}</span>`}
    </div>
    <div role="gridcell" class="col-held num" data-label="holds">${count(row.held)}</div>
    <div role="gridcell" class="col-queue" data-label="queue"><${Name} plain>${row.queue}<//></div>
    <div role="gridcell" class="col-build" data-label="build"><${Name} plain>${row.build}<//></div>
    <div role="gridcell" class="col-host" data-label="host"><${Name} plain>${row.host}<//></div>
  </div>`;
}

/** Restores the scroll position as soon as there are enough rows. */
function useScrollPosition(box, view, length) {
  const left = useRef({ address: location.hash, wanted: scrollPositions.get(location.hash) ?? 0 });
  useLayoutEffect(() => {
    const { wanted } = left.current;
    if (wanted && length * view.rowHeight >= wanted + view.height) {
      left.current.wanted = 0;
      box.current.scrollTop = wanted;
    }
  }, [length]);
  useLayoutEffect(() => {
    left.current.address = location.hash;
    left.current.top = view.top;
  });
  useEffect(() => () => scrollPositions.set(left.current.address, left.current.top), []);
}

function reveal(box, index, view) {
  const top = index * view.rowHeight;
  if (top < box.scrollTop) box.scrollTop = top;
  else if (top + view.rowHeight > box.scrollTop + view.height) box.scrollTop = top + view.rowHeight - view.height;
}

/** The visible part of the table. */
function useView(box) {
  const [view, setView] = useState({ top: 0, height: 600, rowHeight: ROW_HEIGHT.wide });
  useLayoutEffect(() => {
    const look = () =>
      setView({ top: box.current.scrollTop, height: box.current.clientHeight - HEAD_HEIGHT, rowHeight: narrow.matches ? ROW_HEIGHT.narrow : ROW_HEIGHT.wide });
    const sized = new ResizeObserver(look);
    sized.observe(box.current);
    box.current.addEventListener('scroll', look, { passive: true });
    const node = box.current;
    return () => {
      sized.disconnect();
      node.removeEventListener('scroll', look);
    };
  }, []);
  return view;
}
