// The nodes and their shards.
import { get } from '../api.js';
import { useCell } from '../cell.js';
import { allNamespaces } from '../fleet.js';
import { html, useMemo, useState } from '../html.js';
import { Badge } from '../parts/badge.js';
import { Failure, Loading } from '../parts/notice.js';
import { Name, Time } from '../parts/text.js';
import { usePolling } from '../ticker.js';
import { SECOND, parseTime } from '../time.js';
import { count, counted, nodeState } from '../words.js';

const ASK_EVERY_MS = 3 * SECOND;

export function Nodes() {
  const [state, setState] = useState({ nodes: null, shards: [], relay: null, error: null });
  usePolling(async (signal) => {
    try {
      const [{ nodes }, { shards }, relay] = await Promise.all([
        get('/v1/nodes', {}, { signal }),
        get('/v1/shards', {}, { signal }),
        // Most servers have no relay, and would refuse.
        allNamespaces.summary.value?.relays ? get('/v1/relay', {}, { signal }).catch(() => null) : null,
      ]);
      setState({ nodes, shards, relay, error: null });
    } catch (error) {
      if (!signal.aborted) setState((was) => ({ ...was, error }));
    }
  }, ASK_EVERY_MS, []);
  const { nodes, shards, relay, error } = state;
  if (!nodes) return error ? html`<${Failure} error=${error} />` : html`<${Loading} />`;
  return html`<div class="stack">
    <header class="view-head"><h1 tabindex="-1">Nodes and shards</h1></header>
    ${error && html`<${Failure} error=${error} />`}
    <section class="card flush"><div class="scroll-x"><table class="table cards">
      <thead><tr><th>node</th><th>state</th><th>address</th><th>host</th><th class="num">process</th><th>version</th><th class="num">shards</th><th>started</th><th>last renewal</th></tr></thead>
      <tbody>${nodes.map(
        (node) => html`<tr key=${node.node_id}>
          <td><${Name}>${node.node_id}<//> ${node.answering && html`<small class="mute">answers this page</small>`}</td>
          <td data-label="state"><${Badge} word=${nodeState(node.state)} /></td>
          <td data-label="address"><${Name}>${node.address}<//></td>
          <td data-label="host"><${Name} plain>${node.host_name}<//></td>
          <td data-label="process" class="num">${node.process_id}</td>
          <td data-label="version">${node.version}</td>
          <td data-label="shards" class="num">${node.shards}</td>
          <td data-label="started"><${Time} ms=${parseTime(node.start_time)} ago /></td>
          <td data-label="renewed"><${Time} ms=${parseTime(node.renew_time)} ago /></td>
        </tr>`,
      )}</tbody>
    </table></div></section>
    <${Shards} shards=${shards} nodes=${nodes} />
    <${Relay} relay=${relay} />
  </div>`;
}

/** One square per shard: its workers, whether a node serves it, and the length of its queue. */
function Shards({ shards, nodes }) {
  const fleet = useCell(allNamespaces.summary);
  const queues = useMemo(() => new Map((fleet?.queues ?? []).map((queue) => [queue.shard_id, queue])), [fleet]);
  const fullest = Math.max(1, ...shards.map((shard) => Number(shard.active_workers)));
  const unserved = shards.filter((shard) => !shard.serving).length;
  return html`<section class="card">
    <h2>Shards <span class="mute">${counted(shards.length, 'shard')}, ${unserved ? `${unserved} without a node` : 'all served'}</span></h2>
    <ul class="shards">
      ${shards.map((shard) => {
        const queue = queues.get(shard.shard_id);
        const waiting = queue ? Number(queue.pending) + Number(queue.retrying) + Number(queue.dead_lettered) : 0;
        const owner = nodes.length > 1 ? `, on ${shard.node_id || 'no node'}` : '';
        return html`<li key=${shard.shard_id} class=${`shard ${shard.serving ? '' : 'unserved'}`}
          title=${`shard ${shard.shard_id}${owner}: epoch ${shard.epoch}, ${count(shard.active_workers)} active, ${count(shard.inactive_workers)} inactive, log at ${count(shard.last_sequence)}`}>
          <i style=${{ opacity: 0.08 + (0.3 * Number(shard.active_workers)) / fullest }}></i>
          <span>${shard.shard_id}</span><b>${shard.serving ? count(shard.active_workers) : '–'}</b>
          ${waiting > 0 && html`<em>${count(waiting)} queued</em>`}
        </li>`;
      })}
    </ul>
  </section>`;
}

function Relay({ relay }) {
  if (!relay?.connections?.length) return null;
  const postponed = relay.shards.reduce((sum, shard) => sum + Number(shard.postponed_tasks), 0);
  const backlog = relay.shards.reduce((sum, shard) => sum + Number(shard.backlog), 0);
  return html`<section class="card"><h2>Relay to the message broker</h2>
    <ul class="plain">${relay.connections.map(
      (one, at) => html`<li key=${at}><${Badge} word=${one.connected ? 'connected' : 'unavailable'} tone=${one.connected ? 'good' : 'bad'} /> <${Name}>${one.servers.join(', ')}<//>, stream ${one.stream}
        ${one.last_error && html` <span class="mute">last error <${Time} ms=${parseTime(one.last_error_time)} ago />: <bdi>${one.last_error}</bdi></span>`}</li>`,
    )}</ul>
    <p class="mute">${counted(postponed, 'reschedule')} wait for it; ${counted(backlog, 'event')} not yet acknowledged.</p>
  </section>`;
}
