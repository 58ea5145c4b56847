// A list that is asked for, and asked for again when events say that it may have changed.
import { useCell } from './cell.js';
import { useEffect, useRef, useState } from './html.js';
import { anew, onEvents } from './live.js';
import { SECOND } from './time.js';

const REST_MS = SECOND;

/** `call(signal)` asks; `concerns(event)` says whether an event may change the answer. → {answer, error, ask} */
export function useListing(call, concerns, inputs) {
  const generation = useCell(anew);
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
    // However many events come, the list is asked for once a second at most.
    const later = () => (timer ??= setTimeout(() => ((timer = null), ask()), REST_MS));
    asking.current = ask;
    ask();
    const deaf = onEvents((events) => events.some(concerns) && later());
    return () => {
      ended.abort();
      clearTimeout(timer);
      deaf();
    };
  }, [...inputs, generation]);
  return { ...state, ask: () => asking.current() };
}
