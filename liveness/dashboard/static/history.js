// A worker's history, newest first: read in pages, and updated by the event stream.
import { get, inNamespace } from './api.js';
import { useCell } from './cell.js';
import { useEffect, useRef, useState } from './html.js';
import { reloadCount, onEvents } from './live.js';

const PAGE_SIZE = 1_000;

/** → {events, older: a function that loads older events, if there are any, error} */
export function useHistory(ns, key) {
  const generation = useCell(reloadCount);
  const [state, setState] = useState({ events: [], token: null, error: null });
  const ended = useRef(null);

  const page = async (token, signal) => {
    const query = { worker_instance_key: key, newest_first: true, page_size: PAGE_SIZE, page_token: token };
    try {
      const answer = await get(inNamespace(ns, 'worker/history'), query, { signal });
      setState((was) => ({ events: merged(was.events, answer.events), token: answer.next_page_token, error: null }));
    } catch (error) {
      if (!signal.aborted) setState((was) => ({ ...was, error }));
    }
  };

  useEffect(() => {
    ended.current = new AbortController();
    setState({ events: [], token: null, error: null });
    page('', ended.current.signal);
    const unsubscribe = onEvents((events) => {
      const own = events.filter((event) => event.namespace === ns && event.worker_instance_key === key);
      if (own.length) setState((was) => ({ ...was, events: merged(was.events, own) }));
    });
    return () => {
      ended.current.abort();
      unsubscribe();
    };
  }, [ns, key, generation]);

  return { ...state, older: state.token ? () => page(state.token, ended.current.signal) : null };
}

/** All events of a worker are in one shard, so that their sequence numbers order them. */
function merged(known, more) {
  const all = new Map([...known, ...more].map((event) => [event.sequence, event]));
  return [...all.values()].sort((a, b) => Number(b.sequence) - Number(a.sequence));
}
