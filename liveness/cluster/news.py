"""What happens here and concerns other nodes, told to them as it happens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from liveness.cluster.peers import Peers
from liveness.frontend.routes import Routes
from liveness.shard.node import Node
from liveness.shard.shard import HandedOver, Shard
from liveness.shard.strikes import Counted
from liveness.v1 import cluster_pb2


class News:
    def __init__(self, node: Node, routes: Routes, peers: Peers) -> None:
        self._node = node
        self._routes = routes
        self._peers = peers
        node.brake.on_struck = self.struck
        node.on_committed.append(self._on_committed)
        node.on_opened.append(self._on_opened)

    def tasks_left(self, shard_ids: Collection[int]) -> None:
        """Queues of other nodes' shards were given tasks."""
        by_address: defaultdict[str, list[int]] = defaultdict(list)
        for shard_id in shard_ids:
            if (owner := self._routes.owner(shard_id)) is not None:
                by_address[owner.address].append(shard_id)
        for address, ids in by_address.items():
            self._peers.tell(address, lambda message, ids=ids: message.wake_shards.extend(ids))  # type: ignore[misc]

    def activities_wait(self, queues: Collection[tuple[str, str]]) -> None:
        """Here, in these task queues of these namespaces."""
        offers = [cluster_pb2.QueueOffer(namespace=ns, task_queue=name) for ns, name in queues]
        self._peers.tell_all(lambda message: message.offers.extend(offers))

    def struck(self, namespace: str, counted: Counted) -> None:
        """Workers fell due here: others may see that it is a storm sooner than each alone."""
        # Of several in one message the last counts.
        message = cluster_pb2.Struck(namespace=namespace, workers=counted.struck, of=counted.of)
        self._peers.tell_all(lambda hint: hint.struck.append(message))

    def watched(self, watching: bool) -> None:
        """Somebody began to watch events here, or nobody does any more."""
        self._peers.watching = watching
        self._peers.tell_all(lambda message: None)  # every message says so

    def _on_committed(self, handed: Sequence[HandedOver]) -> None:
        if self._peers.watchful:
            self._tell_heads({part.shard.id: part.notable_seq for part in handed if part.notable_seq})

    def _on_opened(self, shard: Shard) -> None:
        self._tell_heads({shard.id: shard.durable_seq})

    def _tell_heads(self, heads: dict[int, int]) -> None:
        messages = [cluster_pb2.LogHead(shard_id=id, sequence=seq) for id, seq in heads.items()]
        for address in self._peers.watchful if messages else ():
            self._peers.tell(address, lambda message: message.heads.extend(messages))
