// Links from an activity of a Temporal worker to its workflow in Temporal's web page.

const UI_LABEL = 'temporal-ui';

/** The address of the workflow; empty if the worker is none of Temporal's, or its bridge does not know the page. */
export function temporalLink(ns, worker, activity) {
  const page = worker.labels[UI_LABEL] || '';
  // A label is text from elsewhere: nothing but a web address becomes a link.
  if (!/^https?:\/\//.test(page)) return '';
  const names = [ns, 'workflows', activity.workflow_id, activity.run_id].map(encodeURIComponent);
  return `${page.replace(/\/+$/, '')}/namespaces/${names.join('/')}`;
}
