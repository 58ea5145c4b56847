"""WatchEvents: committed events from any place on, in order inside each shard, without gap or repeat.

A watcher holds one cursor per shard and reads the log up to what is known durable, so that a slow client costs no
memory here and a resumed one reads what it missed in the same way as the rest. Of other nodes' shards, their owners say
how far the logs are; and the database is asked now and then, for they may not have been heard.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import NamedTuple

from liveness.domain.errors import ResumeTokenInvalid, ShuttingDown
from liveness.domain.keys import shard_of
from liveness.server import tokens
from liveness.shard.node import Node
from liveness.shard.shard import HandedOver, Shard
from liveness.store.codec import LogEntry

EVENTS_PER_ANSWER_MAX = 500


class Selection(NamedTuple):
    namespace: str | None
    worker: str | None


class Batch(NamedTuple):
    shard_id: int
    entries: list[LogEntry]
    resume_token: str


class Feed:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._news = asyncio.Event()
        self._closed = False
        self._elsewhere: dict[int, int] = {}
        """How far logs of other nodes' shards are known to be durable."""
        self._watchers = 0
        self.on_watching: Callable[[bool], None] = lambda watching: None
        """Told when somebody begins to watch here, and when nobody does any more."""
        node.on_committed.append(self._on_committed)
        node.on_opened.append(self._on_opened)

    def close(self) -> None:
        self._closed = True
        self._tell()

    def heard(self, heads: Mapping[int, int]) -> None:
        """Logs of other nodes' shards are durable up to there. Inside a shard, commits are made in order, so that
        whoever knows of one finds all before it."""
        fresh = {id: seq for id, seq in heads.items() if seq > self._elsewhere.get(id, 0)}
        if fresh:
            self._elsewhere.update(fresh)
            self._tell()

    async def look(self) -> None:
        """Ask the database how far the logs of other nodes' shards are, if anybody watches."""
        if self._watchers:
            await self._heads()

    async def _heads(self) -> dict[int, int]:
        """How far every log is durable."""
        view = await self._node.store.look_at_cluster()
        heads = {head.shard_id: head.last_seq for head in view.shards}
        self.heard({id: seq for id, seq in heads.items() if not self._node.serves(id)})
        # What is durable here may be a little more than the database said.
        return heads | {shard.id: shard.durable_seq for shard in self._node.shards()}

    def _on_opened(self, shard: Shard) -> None:
        self._elsewhere.pop(shard.id, None)
        self._tell()

    def _on_committed(self, handed: Sequence[HandedOver]) -> None:
        if any(part.notable_seq for part in handed):
            self._tell()

    def _tell(self) -> None:
        """Wake those who wait now; who comes later waits for the next."""
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def watch(
        self, selection: Selection, resume_token: str, from_beginning: bool
    ) -> AsyncIterator[Batch]:
        self._watchers += 1
        if self._watchers == 1:
            self.on_watching(True)
        try:
            async for batch in self._watch(selection, resume_token, from_beginning):
                yield batch
        finally:
            self._watchers -= 1
            if not self._watchers:
                self.on_watching(False)

    async def _watch(
        self, selection: Selection, resume_token: str, from_beginning: bool
    ) -> AsyncIterator[Batch]:
        shard_ids = self._shard_ids(selection)
        heads = await self._heads()
        if resume_token:
            cursors = self._redeem(resume_token, selection, shard_ids, heads)
        else:
            cursors = {shard_id: 0 if from_beginning else heads[shard_id] for shard_id in shard_ids}
        yield Batch(shard_ids[0], [], self._token(cursors, selection))
        while True:
            news = self._news
            if self._closed:
                raise ShuttingDown
            more = False
            for shard_id in shard_ids:
                through_seq = self._through(shard_id)
                if cursors[shard_id] >= through_seq:
                    continue
                entries = await self._node.store.read_log(
                    shard_id, cursors[shard_id], through_seq, EVENTS_PER_ANSWER_MAX,
                    namespace=selection.namespace, worker=selection.worker,
                )  # fmt: skip
                full = len(entries) == EVENTS_PER_ANSWER_MAX
                cursors[shard_id] = entries[-1].seq if full else through_seq
                more = more or full
                if entries:
                    yield Batch(shard_id, entries, self._token(cursors, selection))
            if not more:
                await news.wait()

    def _through(self, shard_id: int) -> int:
        """Up to where the shard's log may be read."""
        if self._node.serves(shard_id):
            return self._node.shard_by_id(shard_id).durable_notable_seq
        return self._elsewhere.get(shard_id, 0)

    def _shard_ids(self, selection: Selection) -> Sequence[int]:
        if selection.namespace is not None and selection.worker is not None:
            return [shard_of(selection.namespace, selection.worker, self._node.shard_count)]
        return range(self._node.shard_count)

    def _listing(self, selection: Selection) -> tuple[object, ...]:
        """A place in the log of another history, such as one before a restored backup, is no place in this one."""
        history = self._node.store.history.id
        return ("watch", *selection, history) if history else ("watch", *selection)

    def _token(self, cursors: dict[int, int], selection: Selection) -> str:
        return tokens.issue(list(cursors.values()), *self._listing(selection))

    def _redeem(
        self, token: str, selection: Selection, shard_ids: Sequence[int], heads: Mapping[int, int]
    ) -> dict[int, int]:
        places = tokens.redeem(token, list[tokens.Sequence], ResumeTokenInvalid, *self._listing(selection))
        if len(places) != len(shard_ids):
            raise ResumeTokenInvalid
        cursors = dict(zip(shard_ids, places, strict=True))
        # A place beyond the end is from another database.
        if any(place > heads[shard_id] for shard_id, place in cursors.items()):
            raise ResumeTokenInvalid
        return cursors
