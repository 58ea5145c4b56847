// The page: it chooses the view and draws the frame around it.
import { Unreachable } from './api.js';
import { useCell } from './cell.js';
import { Dialogs } from './dialog.js';
import { allNamespaces } from './fleet.js';
import { Frame } from './frame.js';
import { html, render, useEffect } from './html.js';
import { connection, tryAgain, watch } from './live.js';
import { Empty, Loading } from './parts/notice.js';
import { SignInForm } from './parts/sign_in.js';
import { adjust, route } from './route.js';
import { loadSession, ownNamespaces, session } from './session.js';
import { usePolling } from './ticker.js';
import { SECOND } from './time.js';
import { Activities } from './views/activities.js';
import { Activity } from './views/activity.js';
import { Component } from './views/component.js';
import { Components, NoComponents } from './views/components.js';
import { Events } from './views/events.js';
import { Insight } from './views/insight.js';
import { Nodes } from './views/nodes.js';
import { Overview } from './views/overview.js';
import { Progress } from './views/progress.js';
import { Queues } from './views/queues.js';
import { NoRegistry, Registry } from './views/registry.js';
import { Schedules } from './views/schedules.js';
import { Tasks } from './views/tasks.js';
import { Worker } from './views/worker.js';
import { Workers } from './views/workers.js';

const VIEWS = {
  overview: { view: Overview, title: 'Fleet' },
  workers: { view: Workers, title: 'Workers', needsNamespace: true },
  worker: { view: Worker, title: 'Worker', needsNamespace: true },
  components: { view: Components, title: 'Components', needsNamespace: true, nothing: NoComponents },
  component: { view: Component, title: 'Component', needsNamespace: true },
  registry: { view: Registry, title: 'Registry', needsNamespace: true, nothing: NoRegistry },
  activities: { view: Activities, title: 'Activities', needsNamespace: true },
  activity: { view: Activity, title: 'Activity', needsNamespace: true },
  queues: { view: Queues, title: 'Queues', needsNamespace: true },
  schedules: { view: Schedules, title: 'Schedules', needsNamespace: true },
  progress: { view: Progress, title: 'Progress', needsNamespace: true },
  tasks: { view: Tasks, title: 'Tasks' },
  events: { view: Events, title: 'Events' },
  insight: { view: Insight, title: 'Insight', needsNamespace: true },
  nodes: { view: Nodes, title: 'Nodes' },
};
const ASK_EVERY_MS = 2 * SECOND;
/** Where our own servers are registered: nobody looks for their workers there. */
const OWN_NAMESPACE = 'liveness';

function App() {
  const { view: name, params } = useCell(route);
  const { state } = useCell(connection);
  const fleet = useCell(allNamespaces.summary);
  usePolling(askFleet, ASK_EVERY_MS, [state]);

  const known = VIEWS[name];
  const chosen = params.ns ? params.ns : (ownNamespaces()?.[0] ?? params.ns);
  const ns = chosen ?? (known?.needsNamespace ? busiest((fleet?.namespaces ?? []).filter(({ namespace }) => namespace !== OWN_NAMESPACE || name === 'registry')) : '');
  useEffect(() => {
    if (ns && !params.ns) adjust({ ns });
  }, [ns, params.ns]);
  useEffect(() => {
    if (ns !== null) watch(ns);
  }, [ns]);
  useEffect(() => {
    document.title = `${params.key ?? known?.title ?? 'Nothing'} · liveness`;
    // Screen readers announce the new view, and the keyboard continues from its top.
    document.querySelector('h1')?.focus({ preventScroll: true });
  }, [name, params.key]);

  return html`<${Frame} name=${name} ns=${ns ?? ''} fleet=${fleet}>
      <${Content} known=${known} ns=${ns} params=${params} fleet=${fleet} />
    <//>
    <${Dialogs} />`;
}

function Content({ known, ns, params, fleet }) {
  if (!known) return html`<${Empty}>There is no such view.<//>`;
  if (known.needsNamespace && ns === null) {
    if (!fleet) return html`<${Loading} />`;
    return known.nothing ? html`<${known.nothing} />` : html`<${Empty}>No worker has ever been here. Start one, and it shows up by itself.<//>`;
  }
  return html`<${known.view} key=${`${known.title} ${ns} ${params.key ?? ''}`} ns=${ns} params=${params} />`;
}

/** The namespace with the most workers; null if there is no namespace. */
function busiest(namespaces) {
  const total = (one) => Number(one.active) + Number(one.inactive);
  return [...namespaces].sort((a, b) => total(b) - total(a))[0]?.namespace ?? null;
}

async function askFleet(signal) {
  try {
    await allNamespaces.ask(signal);
  } catch (error) {
    if (error instanceof Unreachable && connection.value.state === 'live') tryAgain();
  }
}

function Page() {
  const { state } = useCell(session);
  if (state === 'unknown') return null;
  return state === 'signed out' ? html`<${SignInForm} />` : html`<${App} />`;
}

render(html`<${Page} />`, document.getElementById('app'));
loadSession();
