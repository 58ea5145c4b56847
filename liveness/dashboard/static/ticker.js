// One timer for everything that moves by itself, such as lease bars. It pauses while the page is hidden.
import { useEffect } from './html.js';

const TICK_MS = 250;

const movers = new Set();
let timer = null;

function tick() {
  // No copy of the set: a callback may remove others, which must not be called any more.
  if (!document.hidden) for (const move of movers) move();
}

export function everyTick(move) {
  movers.add(move);
  timer ??= setInterval(tick, TICK_MS);
  return () => {
    movers.delete(move);
    if (movers.size === 0) {
      clearInterval(timer);
      timer = null;
    }
  };
}

/** Calls `move` now and with every tick while the component is mounted. */
export function useTick(move, inputs) {
  useEffect(() => {
    move();
    return everyTick(move);
  }, inputs);
}

/** Calls `work` now, and again `ms` after each end, while the component is mounted and the page is visible. */
export function usePolling(work, ms, inputs) {
  useEffect(() => {
    const ended = new AbortController();
    let wait = null;
    let busy = false;
    const round = async () => {
      if (busy) return;
      busy = true;
      clearTimeout(wait);
      if (!document.hidden) await work(ended.signal);
      busy = false;
      if (!ended.signal.aborted) wait = setTimeout(round, ms);
    };
    const seen = () => !document.hidden && round();
    round();
    document.addEventListener('visibilitychange', seen);
    return () => {
      ended.abort();
      clearTimeout(wait);
      document.removeEventListener('visibilitychange', seen);
    };
  }, inputs);
}
