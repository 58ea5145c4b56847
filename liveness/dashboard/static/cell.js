// A value that notifies its listeners when it changes.
import { useLayoutEffect, useReducer } from './html.js';

export function cell(initial) {
  let value = initial;
  const watchers = new Set();
  return {
    get value() {
      return value;
    },
    set(next) {
      if (Object.is(next, value)) return;
      value = next;
      for (const watcher of [...watchers]) watcher(value);
    },
    watch(watcher) {
      watchers.add(watcher);
      return () => watchers.delete(watcher);
    },
  };
}

export function useCell(watched) {
  const [, again] = useReducer((count) => count + 1, 0);
  const seen = watched.value;
  useLayoutEffect(() => {
    const stop = watched.watch(() => again());
    if (!Object.is(watched.value, seen)) again(); // the value changed after the component was drawn and before it listened
    return stop;
  }, [watched]);
  return seen;
}
