"""WatchEvents: committed events from any position on, in order within each shard, without gaps or repeats.

A watcher holds one cursor per shard and reads the log up to the known durable sequence. So a slow client costs no
memory, and a resumed client reads missed events like all others. Other nodes send the durable sequences of their
shards; the feed also reads them from the database now and then, because such a message may be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import NamedTuple

from liveness.domain.errors import ResumeTokenInvalid, ShuttingDown
from liveness.domain.keys import shard_of
from liveness.engine.listener import NodeListener
from liveness.engine.node import Node
from liveness.engine.shard import PreparedCommit, Shard
from liveness.server import tokens
from liveness.store.codec import LogEntry

EVENTS_PER_RESPONSE_MAX = 500


class EventSelection(NamedTuple):
    namespace: str | None
    worker: str | None


class EventBatch(NamedTuple):
    shard_id: int
    entries: list[LogEntry]
    resume_token: str


class EventFeed(NodeListener):
    def __init__(
        self, node: Node, on_watching_changed: Callable[[bool], None] = lambda watching: None
    ) -> None:
        """`on_watching_changed`: called when the first watcher comes, and when the last has left."""
        self._node = node
        self._changed = asyncio.Event()
        self._closed = False
        self._remote_heads: dict[int, int] = {}
        """The known durable sequence of each shard that another node serves."""
        self._watcher_count = 0
        self._on_watching_changed = on_watching_changed

    def close(self) -> None:
        self._closed = True
        self._wake_watchers()

    def update_remote_heads(self, heads: Mapping[int, int]) -> None:
        """Note how far the logs of other nodes' shards are durable. A shard commits in order, so all entries up to that
        sequence can be read."""
        fresh = {id: seq for id, seq in heads.items() if seq > self._remote_heads.get(id, 0)}
        if fresh:
            self._remote_heads.update(fresh)
            self._wake_watchers()

    async def refresh(self) -> None:
        """If there are watchers, read the durable sequences of other nodes' shards from the database."""
        if self._watcher_count:
            await self._load_heads()

    async def _load_heads(self) -> dict[int, int]:
        """Returns the durable sequence of every shard."""
        view = await self._node.store.read_cluster()
        heads = {head.shard_id: head.last_seq for head in view.shards}
        self.update_remote_heads({id: seq for id, seq in heads.items() if not self._node.serves(id)})
        # For its own shards, this node knows later sequences than it read.
        return heads | {shard.id: shard.durable_seq for shard in self._node.shards()}

    def shard_opened(self, shard: Shard) -> None:
        self._remote_heads.pop(shard.id, None)
        self._wake_watchers()

    def committed(self, commits: Sequence[PreparedCommit]) -> None:
        if any(commit.feed_seq for commit in commits):
            self._wake_watchers()

    def _wake_watchers(self) -> None:
        """Wake the present waiters; later ones wait for the next change."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def watch(
        self, selection: EventSelection, resume_token: str, from_beginning: bool
    ) -> AsyncIterator[EventBatch]:
        self._watcher_count += 1
        if self._watcher_count == 1:
            self._on_watching_changed(True)
        try:
            async for batch in self._watch(selection, resume_token, from_beginning):
                yield batch
        finally:
            self._watcher_count -= 1
            if not self._watcher_count:
                self._on_watching_changed(False)

    async def _watch(
        self, selection: EventSelection, resume_token: str, from_beginning: bool
    ) -> AsyncIterator[EventBatch]:
        shard_ids = self._shard_ids(selection)
        heads = await self._load_heads()
        if resume_token:
            cursors = self._parse_token(resume_token, selection, shard_ids, heads)
        else:
            cursors = {shard_id: 0 if from_beginning else heads[shard_id] for shard_id in shard_ids}
        yield EventBatch(shard_ids[0], [], self._make_token(cursors, selection))
        while True:
            changed = self._changed
            if self._closed:
                raise ShuttingDown
            more = False
            for shard_id in shard_ids:
                through_seq = self._readable_through_seq(shard_id)
                if cursors[shard_id] >= through_seq:
                    continue
                entries = await self._node.store.read_log(
                    shard_id, cursors[shard_id], through_seq, EVENTS_PER_RESPONSE_MAX,
                    namespace=selection.namespace, worker=selection.worker,
                )  # fmt: skip
                full = len(entries) == EVENTS_PER_RESPONSE_MAX
                cursors[shard_id] = entries[-1].seq if full else through_seq
                more = more or full
                if entries:
                    yield EventBatch(shard_id, entries, self._make_token(cursors, selection))
            if not more:
                await changed.wait()

    def _readable_through_seq(self, shard_id: int) -> int:
        """Returns the sequence up to which the shard's log may be read."""
        if self._node.serves(shard_id):
            return self._node.shard_by_id(shard_id).durable_feed_seq
        return self._remote_heads.get(shard_id, 0)

    def _shard_ids(self, selection: EventSelection) -> Sequence[int]:
        if selection.namespace is not None and selection.worker is not None:
            return [shard_of(selection.namespace, selection.worker, self._node.shard_count)]
        return range(self._node.shard_count)

    def _token_scope(self, selection: EventSelection) -> tuple[object, ...]:
        """A token names the timeline: a position from before a restore is not valid after it."""
        timeline = self._node.store.timeline.id
        return ("watch", *selection, timeline) if timeline else ("watch", *selection)

    def _make_token(self, cursors: dict[int, int], selection: EventSelection) -> str:
        return tokens.issue(list(cursors.values()), *self._token_scope(selection))

    def _parse_token(
        self, token: str, selection: EventSelection, shard_ids: Sequence[int], heads: Mapping[int, int]
    ) -> dict[int, int]:
        sequences = tokens.redeem(
            token, list[tokens.Sequence], ResumeTokenInvalid, *self._token_scope(selection)
        )
        if len(sequences) != len(shard_ids):
            raise ResumeTokenInvalid
        cursors = dict(zip(shard_ids, sequences, strict=True))
        # A position beyond the end comes from another database.
        if any(sequence > heads[shard_id] for shard_id, sequence in cursors.items()):
            raise ResumeTokenInvalid
        return cursors
