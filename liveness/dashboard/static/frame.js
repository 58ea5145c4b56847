// The frame around every view: navigation, the namespace selector, the state of the connection.
import { useCell } from './cell.js';
import { Modal } from './dialog.js';
import { html, useEffect, useState } from './html.js';
import { Icon } from './icons.js';
import { HELP, listenToKeys } from './keys.js';
import { connection, tryAgain } from './live.js';
import { byKind } from './parts/alerts.js';
import { Person } from './parts/sign_in.js';
import { go, href, route } from './route.js';
import { ownNamespaces } from './session.js';
import { theme, toggleTheme } from './theme.js';
import { showTime } from './time.js';

const PLACES = [
  ['overview', 'Overview'],
  ['workers', 'Workers'],
  ['components', 'Components'],
  ['registry', 'Registry'],
  ['activities', 'Activities'],
  ['queues', 'Queues'],
  ['schedules', 'Schedules'],
  ['progress', 'Progress'],
  ['tasks', 'Tasks'],
  ['events', 'Events'],
  ['insight', 'Insight'],
  ['nodes', 'Nodes'],
];
/** The navigation entry of a view. */
const PART_OF = { worker: 'workers', component: 'components', activity: 'activities' };

export function Frame({ name, ns, fleet, children }) {
  const [help, setHelp] = useState(false);
  const { state } = useCell(connection);
  useEffect(() => listenToKeys({ go: (view) => go(view, { ns: route.value.params.ns }), help: () => setHelp(true), theme: toggleTheme }), []);
  return html`<div class=${`frame ${state}`}>
    <a class="skip" href="#main" onClick=${toMain}>To the content</a>
    <aside class="side">
      <a class="brand" href=${href('overview', { ns })}><svg viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="8" /><path d="M4 17h6l3-8 6 14 3-6h6" /></svg><span>liveness</span></a>
      <nav class="places" aria-label="Views">
        ${PLACES.map(
          ([view, label]) => html`<a key=${view} href=${href(view, { ns })} aria-current=${(PART_OF[name] ?? name) === view ? 'page' : undefined}>
            <${Icon} name=${view} /><span>${label}</span>${view === 'overview' && fleet?.alerts.length > 0 && html`<em title="What needs attention">${byKind(fleet.alerts).length}</em>`}
          </a>`,
        )}
      </nav>
    </aside>
    <div class="top">
      <${NamespaceSwitcher} name=${name} ns=${ns} fleet=${fleet} />
      <span class="space"></span>
      <${Line} />
      <button type="button" class="icon-button" aria-label="Keys" title="Keys (?)" onClick=${() => setHelp(true)}><${Icon} name="keys" /></button>
      <${ThemeButton} />
      <${Person} />
    </div>
    <main id="main" tabindex="-1">
      <${LostBanner} />
      ${children}
    </main>
    ${help && html`<${Keys} onClose=${() => setHelp(false)} />`}
  </div>`;
}

/** Moves the focus without changing the address, which holds the view. */
function toMain(event) {
  event.preventDefault();
  document.getElementById('main').focus();
}

function NamespaceSwitcher({ name, ns, fleet }) {
  const names = ownNamespaces() ?? (fleet?.namespaces ?? []).map((one) => one.namespace);
  if (ns && !names.includes(ns)) names.unshift(ns);
  // A worker, a component or an activity does not exist in another namespace, so its list is shown.
  const change = (event) => go(PART_OF[name] ?? name, { ns: event.target.value });
  const all = !ownNamespaces() && !['workers', 'components', 'registry', 'activities', 'queues', 'schedules', 'progress'].includes(PART_OF[name] ?? name);
  return html`<label class="namespace"><span>namespace</span>
    <select value=${ns} onChange=${change} aria-label="Namespace">
      ${(all || names.length === 0) && html`<option value="">all</option>`}
      ${names.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}
    </select>
  </label>`;
}

const LINES = { live: 'live', connecting: 'connecting', lost: 'not live' };

function Line() {
  const { state } = useCell(connection);
  return html`<span class=${`line ${state}`} role="status"><i class="dot" aria-hidden="true"></i>${LINES[state]}</span>`;
}

function LostBanner() {
  const { state, since } = useCell(connection);
  if (state !== 'lost') return null;
  return html`<div class="lost-banner" role="status">
    <span>The server cannot be reached. This page shows the state as of ${showTime(since)} and continues as soon as the server is back.</span>
    <button type="button" class="button small" onClick=${tryAgain}>Try now</button>
  </div>`;
}

function ThemeButton() {
  const dark = useCell(theme) === 'dark';
  const label = dark ? 'To light colours' : 'To dark colours';
  return html`<button type="button" class="icon-button" aria-label=${label} title=${`${label} (d)`} onClick=${toggleTheme}><${Icon} name=${dark ? 'sun' : 'moon'} /></button>`;
}

function Keys({ onClose }) {
  return html`<${Modal} label="Keys" onClose=${onClose}>
    <h2>Keys</h2>
    <dl class="key-list">${HELP.map(([keys, what]) => html`<div key=${keys}><dt>${keys.split(' ').map((key) => html`<kbd key=${key}>${key}</kbd> `)}</dt><dd>${what}</dd></div>`)}</dl>
  <//>`;
}
