// A list that is loaded again when an event may have changed it.
import { useCell } from './cell.js';
import { useEffect, useRef, useState } from './html.js';
import { reloadCount, onEvents } from './live.js';
import { SECOND } from './time.js';

const REST_MS = SECOND;

/** `call(signal)` loads the list; `concerns(event)` says whether an event may change it. → {answer, error, ask} */
export function useListing(call, concerns, inputs) {
  const generation = useCell(reloadCount);
  const [state, setState] = useState({ answer: null, error: null });
  const asking = useRef(() => {});
  useEffect(() => {
    const ended = new AbortController();
    let timer = null;
    const ask = async () => {
      try {
        const answer = await call(ended.signal);
        if (!ended.signal.aborted) setState({ answer, error: null });
      } catch (error) {
        if (!ended.signal.aborted) setState((was) => ({ ...was, error }));
      }
    };
    // The list is loaded at most once a second, however many events arrive.
    const later = () => (timer ??= setTimeout(() => ((timer = null), ask()), REST_MS));
    asking.current = ask;
    ask();
    const unsubscribe = onEvents((events) => events.some(concerns) && later());
    return () => {
      ended.abort();
      clearTimeout(timer);
      unsubscribe();
    };
  }, [...inputs, generation]);
  return { ...state, ask: () => asking.current() };
}
