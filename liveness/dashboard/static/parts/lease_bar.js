// A bar that shows the remaining time of a lease and counts down. Without a connection it stops and says so.
import { html, useMemo, useRef } from '../html.js';
import { connection } from '../live.js';
import { useTick } from '../ticker.js';
import { serverNow, showDuration } from '../time.js';

export function LeaseBar({ deadline, leaseMs, suspect }) {
  const bar = useRef();
  const left = useRef();
  const box = useRef();
  // A new bar starts at its value without a transition; later changes are animated.
  const first = useMemo(() => ({ transform: scale(shareOf(deadline, leaseMs)) }), []);
  useTick(() => {
    if (connection.value.state !== 'live' || !box.current) return;
    // Written to the elements directly: dozens of bars move several times a second.
    const ms = deadline - serverNow();
    const share = shareOf(deadline, leaseMs);
    bar.current.style.transform = scale(share);
    box.current.className = `lease ${suspect ? 'warn' : ms < 0 ? 'over' : share < 0.34 ? 'low' : ''}`;
    left.current.textContent = ms < 0 ? 'due' : showDuration(ms);
  }, [deadline, leaseMs, suspect]);
  return html`<span class="lease" ref=${box} role="img" aria-label="lease" title=${`granted for ${showDuration(leaseMs)}`}>
    <span class="lease-track"><i ref=${bar} style=${first}></i></span><span class="lease-left" ref=${left}></span>
  </span>`;
}

const shareOf = (deadline, leaseMs) => Math.max(0, Math.min(1, (deadline - serverNow()) / (leaseMs || 1)));
const scale = (share) => `scaleX(${share.toFixed(4)})`;
