// The newest events from before the page was opened, joined with those that arrive.
import { get, inNamespace } from './api.js';
import { useCell } from './cell.js';
import { useEffect, useMemo, useState } from './html.js';
import { recent, reloadCount } from './live.js';

const ASKED = 200;

/** {events, error}: of a namespace, or of all with ''; newest last. events is null until they are known. */
export function useRecentEvents(namespace) {
  const live = useCell(recent);
  // The stream is open by then, so that no event falls between the two.
  const generation = useCell(reloadCount);
  const [{ earlier, error }, setState] = useState({ earlier: null, error: null });
  useEffect(() => {
    const abort = new AbortController();
    const path = namespace ? inNamespace(namespace, 'recent-events') : '/v1/recent-events';
    get(path, { page_size: ASKED }, { signal: abort.signal }).then(
      (answer) => setState({ earlier: answer.events ?? [], error: null }),
      (reason) => !abort.signal.aborted && setState((was) => ({ ...was, error: reason })),
    );
    return () => abort.abort();
  }, [namespace, generation]);
  const events = useMemo(() => joined(earlier, live), [earlier, live]);
  return { events, error };
}

const keyOf = (event) => `${event.shard_id}:${event.sequence}`;

function joined(earlier, live) {
  if (earlier === null) return live.length ? live : null;
  const arrived = new Set(live.map(keyOf));
  return [...earlier.filter((event) => !arrived.has(keyOf(event))), ...live];
}
