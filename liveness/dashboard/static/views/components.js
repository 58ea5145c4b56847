// The components of a namespace by group: processes that a supervisor keeps running.
import { orderComponents, scaleGroup } from '../component_actions.js';
import { get, inNamespace } from '../api.js';
import { html } from '../html.js';
import { useListing } from '../listing.js';
import { Badge } from '../parts/badge.js';
import { Chips, listOf } from '../parts/chips.js';
import { Empty, Failure, Loading } from '../parts/notice.js';
import { ComponentLink, Elapsed, Name, Time } from '../parts/text.js';
import { adjust } from '../route.js';
import { may } from '../session.js';
import { usePolling } from '../ticker.js';
import { SECOND, parseTime } from '../time.js';
import { componentAction, componentStatus, count, counted, exitOf } from '../words.js';

export const STATUSES = ['starting', 'healthy', 'paused', 'stopping', 'stopped', 'crashed', 'failed'];
const RUNNING = ['starting', 'healthy', 'paused', 'stopping'];
/** Jobs change with heartbeats, which are no events, so the list is loaded again at intervals. */
const ASK_EVERY_MS = 3 * SECOND;
const PAGE_SIZE = 1_000;
const COMPONENTS_MAX = 5_000;
const OF_A_SUPERVISOR = /^(worker|supervisor):/;

/** Why it has its status, unless that only repeats the status. */
export const reasonOf = ({ status, reason }) => (reason === componentStatus(status) || reason === status.toLowerCase() ? '' : reason);
export const isRunning = (component) => RUNNING.includes(componentStatus(component.status));

export function NoComponents() {
  return html`<div class="notice explained">
    <p>No process is supervised here. This keeps one running, and it shows up by itself:</p>
    <p><code>liveness supervise --name discovery -- python worker.py</code></p>
  </div>`;
}

export function Components({ ns, params }) {
  const chosen = listOf(params.status, STATUSES);
  const { answer, error, ask } = useListing(
    (signal) => load(ns, signal),
    (event) => event.namespace === ns && OF_A_SUPERVISOR.test(event.worker_instance_key ?? ''),
    [ns],
  );
  usePolling(() => ask(), ASK_EVERY_MS, [ns]);
  const groups = answer?.groups ?? [];
  const components = answer?.components ?? [];
  const counts = {};
  for (const { status } of components) counts[componentStatus(status)] = (counts[componentStatus(status)] ?? 0) + 1;
  const matches = (component) => !chosen.length || chosen.includes(componentStatus(component.status));
  const seen = groups.map((group) => [group, components.filter((one) => one.group === group.group)]).filter(([, own]) => !chosen.length || own.some(matches));
  return html`<div class="stack">
    <header class="view-head"><h1 tabindex="-1">Components</h1>
      <span class="mute" role="status" aria-live="polite">${answer ? `${counted(components.length, 'component')} in ${counted(groups.length, 'group')}` : ''}${answer?.cut ? ` · the first ${count(COMPONENTS_MAX)} only` : ''}</span>
    </header>
    ${groups.length > 0 && html`<div class="tools"><${Chips} label="Statuses" choices=${STATUSES} chosen=${chosen} counts=${counts} onChange=${(next) => adjust({ status: next.join(',') })} /></div>`}
    ${error && html`<${Failure} error=${error} />`}
    ${!answer && !error && html`<${Loading} />`}
    ${answer && groups.length === 0 && html`<section class="card"><${NoComponents} /></section>`}
    ${groups.length > 0 && seen.length === 0 && html`<section class="card"><${Empty}>No component matches.<//></section>`}
    ${seen.map(([group, own]) => html`<${Group} key=${group.group} ns=${ns} group=${group} components=${own} shown=${own.filter(matches)} refresh=${ask} />`)}
  </div>`;
}

/** All groups and components. A group whose supervisor was forgotten has components and no entry of its own. */
async function load(ns, signal) {
  const [groups, components] = await Promise.all([
    pages(ns, 'component-groups', (page) => page.groups, signal),
    pages(ns, 'components', (page) => page.components, signal),
  ]);
  const known = new Set(groups.items.map((group) => group.group));
  const orphaned = [...new Set(components.items.map((one) => one.group))].filter((name) => !known.has(name));
  const forgotten = orphaned.map((group) => ({ group, supervised: false, waiting_orders: [], forgotten: true }));
  return { groups: [...groups.items, ...forgotten], components: components.items, cut: components.cut };
}

async function pages(ns, path, itemsOf, signal) {
  const items = [];
  let token = '';
  do {
    const page = await get(inNamespace(ns, path), { page_size: PAGE_SIZE, page_token: token }, { signal });
    items.push(...itemsOf(page));
    token = page.next_page_token;
  } while (token && items.length < COMPONENTS_MAX);
  return { items, cut: token !== '' };
}

function Group({ ns, group, components, shown, refresh }) {
  return html`<section class="card flush" aria-label=${`Group ${group.group}`}>
    <div class="card-head group-head">
      <div class="group-title">
        <h2><${Name}>${group.group}<//></h2>
        <${Supervisor} group=${group} />
      </div>
      ${may('operator', ns) && !group.forgotten && html`<${GroupButtons} ns=${ns} group=${group} components=${components} refresh=${refresh} />`}
    </div>
    <${WaitingOrders} group=${group} />
    ${shown.length === 0
      ? html`<${Empty}>The supervisor has started nothing yet.<//>`
      : html`<div class="scroll-x"><table class="table cards">
          <thead><tr><th>component</th><th>status</th><th>uptime</th><th>current job</th><th class="num">restarts</th><th>last exit</th><th>reason</th><th><span class="visually-hidden">actions</span></th></tr></thead>
          <tbody>${shown.map((one) => html`<${Row} key=${one.component_id} ns=${ns} component=${one} forgotten=${group.forgotten} refresh=${refresh} />`)}</tbody>
        </table></div>`}
  </section>`;
}

function Supervisor({ group }) {
  if (!group.supervised) {
    return html`<${Badge} word="no supervisor" title="Nobody keeps these processes running" />
      ${group.last_seen_time && html`<span class="mute">seen <${Time} ms=${parseTime(group.last_seen_time)} ago />${group.host_name && html` on <${Name}>${group.host_name}<//>`}</span>`}`;
  }
  return html`<${Badge} word="supervised" tone="good" title="Its supervisor has a live lease" />
    <span class="mute">by process ${group.process_id || 'unknown'}${group.host_name && html` on <${Name}>${group.host_name}<//>`}, seen <${Time} ms=${parseTime(group.last_seen_time)} ago /></span>`;
}

function GroupButtons({ ns, group, components, refresh }) {
  const order = (name) => () => orderComponents(name, ns, group.group, [], refresh);
  const any = (test) => components.some(test);
  const wanted = components.filter((one) => one.wanted).length;
  const button = (name, label, danger = false) => html`<button key=${name} type="button" class=${`button small ${danger ? 'danger' : ''}`} onClick=${order(name)}>${label}</button>`;
  return html`<div class="buttons" role="group" aria-label=${`Actions on group ${group.group}`}>
    ${any((one) => !isRunning(one)) && button('start', 'Start')}
    ${any((one) => one.paused) && button('resume', 'Resume')}
    ${any((one) => !one.paused) && button('pause', 'Pause')}
    ${any((one) => one.restart_count > 0) && button('reset', 'Reset')}
    <button type="button" class="button small" onClick=${() => scaleGroup(ns, group.group, wanted, refresh)}>Scale</button>
    ${button('rolling restart', 'Rolling restart')}
    ${button('restart', 'Restart', true)}
    ${any(isRunning) && button('stop', 'Stop', true)}
  </div>`;
}

/** Orders that the supervisor has not carried out yet; `id`: only those about this component. */
export function WaitingOrders({ group, id = null }) {
  const orders = (group?.waiting_orders ?? []).filter((order) => id === null || !order.component_ids.length || order.component_ids.includes(id));
  if (!orders.length) return null;
  return html`<ul class="group-orders">${orders.map(
    (order) => html`<li key=${order.number}><${Badge} word="waiting" /> order ${order.number}: ${componentAction(order.action)}${order.action.endsWith('SCALE') ? ` to ${order.count}` : ''}${order.by && html` by <${Name}>${order.by}<//>`}, <${Time} ms=${parseTime(order.time)} ago />${order.reason && html`: <bdi>${order.reason}</bdi>`}</li>`,
  )}</ul>`;
}

export function StatusBadges({ component }) {
  const status = componentStatus(component.status);
  return html`<${Badge} word=${status} />${component.paused && status !== 'paused' && html` <${Badge} word="paused" title="It takes no job" />`}`;
}

function Row({ ns, component, forgotten, refresh }) {
  const running = isRunning(component);
  const act = (name) => () => orderComponents(name, ns, component.group, [component.component_id], refresh);
  const button = (name, label, danger = false) => html`<button type="button" class=${`button small ${danger ? 'danger' : ''}`} aria-label=${`${label} ${component.component_id}`} onClick=${act(name)}>${label}</button>`;
  return html`<tr>
    <td><${ComponentLink} ns=${ns} id=${component.component_id} /></td>
    <td data-label="status"><${StatusBadges} component=${component} /></td>
    <td data-label="uptime"><${Elapsed} ms=${running ? parseTime(component.process_start_time) : null} /></td>
    <td data-label="job"><${Name} plain>${component.current_job}<//></td>
    <td data-label="restarts" class="num">${count(component.restart_count)}</td>
    <td data-label="last exit"><${Name} plain>${exitOf(component.last_exit)}<//></td>
    <td data-label="reason" class="reason"><${Name} plain>${reasonOf(component)}<//></td>
    <td class="right"><span class="buttons">
      ${may('operator', ns) && !forgotten && (running ? html`${button('restart', 'Restart')}${button('stop', 'Stop', true)}` : button('start', 'Start'))}
    </span></td>
  </tr>`;
}
