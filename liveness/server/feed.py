"""WatchEvents: committed events from any place on, in order inside each shard, without gap or repeat.

A watcher holds one cursor per shard and reads the log up to what is known durable, so that a slow client costs no
memory here and a resumed one reads what it missed in the same way as the rest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

from liveness.domain.errors import ResumeTokenInvalid, ShuttingDown
from liveness.domain.keys import shard_of
from liveness.server import tokens
from liveness.shard.node import Node
from liveness.shard.shard import HandedOver
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
        node.on_committed.append(self._on_committed)
        node.on_opened.append(lambda shard: self._tell())

    def close(self) -> None:
        self._closed = True
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
        shard_ids = self._shard_ids(selection)
        if resume_token:
            cursors = self._redeem(resume_token, selection, shard_ids)
        else:
            # A shard that is being re-read cannot tell what has been so far: the client tries again.
            cursors = {
                shard_id: 0 if from_beginning else self._node.shard_by_id(shard_id).durable_seq
                for shard_id in shard_ids
            }
        yield Batch(shard_ids[0], [], self._token(cursors, selection))
        while True:
            news = self._news
            if self._closed:
                raise ShuttingDown
            more = False
            for shard in self._node.shards():
                through_seq = shard.durable_notable_seq
                if shard.id not in cursors or cursors[shard.id] >= through_seq:
                    continue
                entries = await self._node.store.read_log(
                    shard.id, cursors[shard.id], through_seq, EVENTS_PER_ANSWER_MAX,
                    namespace=selection.namespace, worker=selection.worker,
                )  # fmt: skip
                full = len(entries) == EVENTS_PER_ANSWER_MAX
                cursors[shard.id] = entries[-1].seq if full else through_seq
                more = more or full
                if entries:
                    yield Batch(shard.id, entries, self._token(cursors, selection))
            if not more:
                await news.wait()

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

    def _redeem(self, token: str, selection: Selection, shard_ids: Sequence[int]) -> dict[int, int]:
        places = tokens.redeem(token, list[tokens.Sequence], ResumeTokenInvalid, *self._listing(selection))
        if len(places) != len(shard_ids):
            raise ResumeTokenInvalid
        cursors = dict(zip(shard_ids, places, strict=True))
        # A place beyond the end is from another database.
        if any(cursors.get(shard.id, 0) > shard.durable_seq for shard in self._node.shards()):
            raise ResumeTokenInvalid
        return cursors
