// The current view and its parameters, in the address: #/view?name=value. A link to it shows the same.
import { queryText } from './api.js';
import { cell } from './cell.js';

const HOME = 'overview';

function read() {
  const [, view = '', query = ''] = /^#\/([a-z]*)\??(.*)$/s.exec(location.hash) ?? [];
  return { view: view || HOME, params: Object.fromEntries(new URLSearchParams(query)) };
}

export const route = cell(read());
addEventListener('hashchange', () => route.set(read()));

export function href(view, params = {}) {
  const query = queryText(params);
  return `#/${view}${query ? `?${query}` : ''}`;
}

export function go(view, params) {
  location.hash = href(view, params);
}

/** Changes parameters of the current view without a new entry in the browser's history; null removes one. */
export function adjust(changes) {
  const { view, params } = route.value;
  history.replaceState(null, '', href(view, { ...params, ...changes }));
  route.set(read());
}

export const workerHref = (ns, key) => href('worker', { ns, key });

export const componentHref = (ns, key) => href('component', { ns, key });

export const activityHref = (ns, id) =>
  href('activity', { ns, workflow: id.workflow_id, run: id.run_id, activity: id.activity_id });
