// Links from an activity of a Temporal worker to Temporal's web page.

import { html } from './html.js';

const UI_LABEL = 'temporal-ui';

/** The task queue of attempts that Temporal workers have lost. */
export const RESCUE_QUEUE = 'temporal-rescue';

/** Where its workflow is shown; empty if the worker is none of Temporal's, or its bridge does not know the page. */
export function temporalLink(ns, worker, activity) {
  const page = worker.labels[UI_LABEL] || '';
  // A label is text from elsewhere: nothing but a web address becomes a link.
  if (!/^https?:\/\//.test(page)) return '';
  // A standalone activity stands in the workflow's place, and nothing before the number of its attempt.
  const kind = activity.activity_id.startsWith('@') ? 'activities' : 'workflows';
  const names = [ns, kind, activity.workflow_id, activity.run_id].map(encodeURIComponent);
  return `${page.replace(/\/+$/, '')}/namespaces/${names.join('/')}`;
}

export function InTemporal({ href }) {
  return href && html` <a href=${href} target="_blank" rel="noopener noreferrer">in Temporal</a>`;
}
