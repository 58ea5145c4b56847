// What needs attention. Alerts of one kind share a banner, so that many of them do not push the charts off the screen.
import { releaseStorm } from '../actions.js';
import { html, useState } from '../html.js';
import { Icon } from '../icons.js';
import { href } from '../route.js';
import { may } from '../session.js';
import { count, counted } from '../words.js';
import { Name } from './text.js';

/** How many banners are shown before the user asks for all. */
const SHOWN = 3;

/** title and unit describe several alerts of a kind; view and params, where to look. */
const KINDS = {
  ALERT_KIND_DATABASE: { tone: 'bad', title: 'Servers cannot use the database', unit: 'server', view: 'nodes', params: {} },
  ALERT_KIND_UNSERVED_SHARDS: { tone: 'bad', title: 'Shards without a server', unit: 'shard', view: 'nodes', params: {} },
  ALERT_KIND_STORM: { tone: 'bad', title: 'Storms', unit: 'worker', view: 'workers', params: { state: 'inactive' } },
  ALERT_KIND_INCIDENT: { tone: 'bad', title: 'Workers died together', unit: 'worker', view: 'insight', params: {} },
  ALERT_KIND_NO_ACTIVE_WORKERS: { tone: 'bad', title: 'No active worker', unit: 'dead worker', view: 'workers', params: { state: 'inactive' } },
  ALERT_KIND_COMPONENT_GROUP_CRASHED: { tone: 'bad', title: 'Groups of components crashed together', unit: 'component', view: 'components', params: {} },
  ALERT_KIND_COMPONENT_FAILED: { tone: 'bad', title: 'Components failed', unit: 'component', view: 'components', params: { status: 'failed' } },
  ALERT_KIND_COMPONENT_RESTARTS: { tone: 'warn', title: 'Components restart often', unit: 'restart', view: 'components', params: {} },
  ALERT_KIND_UNPOLLED_QUEUE: { tone: 'bad', title: 'Work waits where no worker polls', unit: 'activity', view: 'activities', params: { state: 'available' } },
  ALERT_KIND_LONG_WAIT: { tone: 'warn', title: 'Work waits too long', unit: 'activity', view: 'activities', params: { state: 'available' } },
  ALERT_KIND_LOST_NODES: { tone: 'warn', title: 'Nodes are lost', unit: 'node', view: 'nodes', params: {} },
  ALERT_KIND_INSECURE: { tone: 'warn', title: 'Servers can be reached without protection', unit: 'server', view: 'nodes', params: {} },
  ALERT_KIND_SUSPICIOUS: { tone: 'warn', title: 'Suspicious calls', unit: 'call', view: 'overview', params: {} },
  ALERT_KIND_STALL: { tone: 'warn', title: 'Servers stood still', unit: 'time', view: 'nodes', params: {} },
  ALERT_KIND_RELAY: { tone: 'warn', title: 'The message broker takes nothing', unit: 'server', view: 'nodes', params: {} },
  ALERT_KIND_DEAD_LETTERS: { tone: 'bad', title: 'Dead letters', unit: 'task', view: 'tasks', params: { state: 'dead lettered' } },
  ALERT_KIND_QUARANTINE: { tone: 'bad', title: 'Quarantined activities', unit: 'activity', view: 'activities', params: { state: 'quarantined' } },
};
const UNKNOWN = { tone: 'warn', title: 'Alerts', unit: '', view: 'overview', params: {} };
const kindOf = (alert) => KINDS[alert.kind] ?? UNKNOWN;

/** The alerts by kind, the most urgent kind first: that is the order in which the server sends them. */
export function byKind(alerts) {
  const kinds = new Map();
  for (const alert of alerts) kinds.set(alert.kind, [...(kinds.get(alert.kind) ?? []), alert]);
  return [...kinds.values()];
}

/** namespaces: as in the summary of the fleet. */
export function Alerts({ alerts, namespaces, refresh }) {
  const [all, setAll] = useState(false);
  if (!alerts.length) return null;
  const held = new Map(namespaces.map((one) => [one.namespace, Number(one.held_expiries)]));
  const banners = byKind(alerts);
  const shown = all ? banners : banners.slice(0, SHOWN);
  const more = banners.length - shown.length;
  const given = { held, refresh };
  return html`<div class="alerts" role="region" aria-label="What needs attention">
    ${shown.map((same) =>
      same.length === 1
        ? html`<div key=${same[0].kind} class=${`alert ${kindOf(same[0]).tone}`}><${One} alert=${same[0]} icon ...${given} /></div>`
        : html`<${Several} key=${same[0].kind} alerts=${same} ...${given} />`,
    )}
    ${more > 0 && html`<button type="button" class="button small alerts-more" onClick=${() => setAll(true)}>${counted(more, 'more banner')}</button>`}
  </div>`;
}

function One({ alert, icon, held, refresh }) {
  const { view, params } = kindOf(alert);
  const workers = alert.kind === 'ALERT_KIND_STORM' ? (held.get(alert.namespace) ?? 0) : 0;
  return html`<a class="alert-link" href=${href(view, { ns: alert.namespace, ...params })} title=${alert.message}>
      ${icon && html`<${Icon} name="warning" />`}<bdi>${alert.message}</bdi>${alert.namespace && html`<span class="alert-ns"><${Name}>${alert.namespace}<//></span>`}
    </a>
    ${workers > 0 && may('operator', alert.namespace) && html`<button type="button" class="button small" onClick=${() => releaseStorm(alert.namespace, workers, refresh)}>Release</button>`}`;
}

function Several({ alerts, held, refresh }) {
  const { tone, title, unit } = kindOf(alerts[0]);
  const total = alerts.reduce((sum, alert) => sum + Number(alert.count), 0);
  const things = unit.endsWith('y') ? counted(total, unit, `${unit.slice(0, -1)}ies`) : counted(total, unit);
  return html`<details class=${`alert alert-group ${tone}`}>
    <summary><${Icon} name="warning" /><bdi>${title}: ${things} in ${counted(new Set(alerts.map((alert) => alert.namespace)).size, 'namespace')}</bdi><em class="alert-count">${count(alerts.length)}</em><${Icon} name="down" /></summary>
    <ul>${alerts.map((alert) => html`<li key=${alert.namespace + alert.message}><${One} alert=${alert} held=${held} refresh=${refresh} /></li>`)}</ul>
  </details>`;
}
