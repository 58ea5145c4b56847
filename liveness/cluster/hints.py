"""Tells other nodes at once what happens on this node and concerns them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from liveness.cluster.peers import Peers
from liveness.engine.listener import NodeListener
from liveness.engine.shard import PreparedCommit, Shard
from liveness.expiry.death_rate import DeathCount
from liveness.routing.routing_table import RoutingTable
from liveness.v1 import cluster_pb2


class HintSender(NodeListener):
    def __init__(self, routes: RoutingTable, peers: Peers) -> None:
        self._routes = routes
        self._peers = peers

    def notify_tasks_added(self, shard_ids: Collection[int]) -> None:
        """Tell the owners of these shards that their queues were given tasks."""
        by_address: defaultdict[str, list[int]] = defaultdict(list)
        for shard_id in shard_ids:
            if (owner := self._routes.owner(shard_id)) is not None:
                by_address[owner.address].append(shard_id)
        for address, ids in by_address.items():
            self._peers.send_hint(address, lambda message, ids=ids: message.wake_shards.extend(ids))  # type: ignore[misc]

    def notify_activities_available(self, offers: Collection[tuple[str, str, str]]) -> None:
        """Tell all nodes that activities wait here: namespaces, task queues and activity types."""
        types: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for namespace, task_queue, activity_type in offers:
            types[namespace, task_queue].append(activity_type)
        messages = [
            cluster_pb2.QueueOffer(namespace=namespace, task_queue=task_queue, activity_types=names)
            for (namespace, task_queue), names in types.items()
        ]
        self._peers.broadcast_hint(lambda message: message.offers.extend(messages))

    def notify_watching(self, watching: bool) -> None:
        """Tell all nodes whether any client watches events here."""
        self._peers.watching = watching
        self._peers.broadcast_hint(lambda message: None)  # every hint carries it

    # -- as a listener of the node

    def deaths_counted(self, namespace: str, death_count: DeathCount) -> None:
        # Together, nodes detect a storm sooner than each of them alone. The receiver uses the last count of a message.
        message = cluster_pb2.Struck(namespace=namespace, workers=death_count.dead, of=death_count.total)
        self._peers.broadcast_hint(lambda hint: hint.struck.append(message))

    def committed(self, commits: Sequence[PreparedCommit]) -> None:
        if self._peers.watching_addresses:
            self._send_log_heads({commit.shard.id: commit.feed_seq for commit in commits if commit.feed_seq})

    def shard_opened(self, shard: Shard) -> None:
        self._send_log_heads({shard.id: shard.durable_seq})

    def _send_log_heads(self, heads: dict[int, int]) -> None:
        messages = [cluster_pb2.LogHead(shard_id=id, sequence=seq) for id, seq in heads.items()]
        for address in self._peers.watching_addresses if messages else ():
            self._peers.send_hint(address, lambda message: message.heads.extend(messages))
