// Keyboard shortcuts: "/" focuses the filter, "g" and a letter open a view, "?" shows help. Ignored while the user types.
const VIEWS = { o: 'overview', w: 'workers', c: 'components', r: 'registry', a: 'activities', q: 'queues', s: 'schedules', p: 'progress', t: 'tasks', e: 'events', i: 'insight', n: 'nodes' };
const PREFIX_MS = 1_200;

export const HELP = [
  ['/', 'filter what is shown'],
  ['g o', 'overview'],
  ['g w', 'workers'],
  ['g c', 'components'],
  ['g r', 'registry'],
  ['g a', 'activities'],
  ['g q', 'queues'],
  ['g s', 'schedules'],
  ['g p', 'progress'],
  ['g t', 'tasks'],
  ['g e', 'events'],
  ['g i', 'insight: incidents and tuning'],
  ['g n', 'nodes and shards'],
  ['↑ ↓ PgUp PgDn Home End', 'move in the table of workers'],
  ['Enter', 'open the worker'],
  ['d', 'dark or light'],
  ['Esc', 'leave a dialog or the filter'],
  ['?', 'these keys'],
];

const typing = (target) => target.closest?.('input, textarea, select, dialog') !== null;

/** orders: {go(view), help(), theme()} */
export function listenToKeys(orders) {
  let prefixed = 0;
  const pressed = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (typing(event.target)) {
      if (event.key === 'Escape' && event.target.matches('input[type=search]')) event.target.blur();
      return;
    }
    const view = performance.now() - prefixed < PREFIX_MS && VIEWS[event.key];
    prefixed = 0;
    if (view) orders.go(view);
    else if (event.key === 'g') prefixed = performance.now();
    else if (event.key === '?') orders.help();
    else if (event.key === 'd') orders.theme();
    else if (event.key === '/') document.querySelector('input[type=search]')?.focus();
    else return;
    event.preventDefault();
  };
  document.addEventListener('keydown', pressed);
  return () => document.removeEventListener('keydown', pressed);
}
