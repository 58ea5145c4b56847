"""WatchEvents: committed events from any position on, in order within each shard, without gaps or repeats.

A watcher holds one cursor per shard and reads the log up to the known durable sequence. So a slow client costs no
memory, and a resumed client reads missed events like all others. Other nodes send the durable sequences of their
shards; the feed also reads them from the database now and then, because such a message may be lost.

A commit of this node wakes only the watchers that selected one of its events. The others have read everything by not being
woken, and their tokens follow now and then. What other nodes commit wakes all watchers, because a message about it names no
events.

Retention may delete events before a watcher has read them: it was away for too long, or reads too slowly. Such a watcher is
refused, with what it misses, and has to start anew. A watch from the beginning misses what was deleted before it began, and
knows that; its cursors say so while they are behind the newest deleted event.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import NamedTuple

from liveness.clock import wait_for_event
from liveness.domain.errors import ResumeTokenInvalid, ShuttingDown, TooManyWatchers
from liveness.domain.keys import shard_of
from liveness.engine.listener import NodeListener
from liveness.engine.node import Node
from liveness.engine.shard import PreparedCommit, Shard
from liveness.server import tokens, wire
from liveness.store.codec import LogEntry, RenewalBatch
from liveness.store.deletions import DeletedEvents
from liveness.store.pages import PAGE_BYTES_MAX

EVENTS_PER_RESPONSE_MAX = 500
WATCHERS_MAX = 1_000
"""Streams of one node."""
BOOKMARK_INTERVAL_MS = 60_000
"""How old the token of a watcher may become while others' events pass by: a token that stays behind would be refused as soon as
retention deletes those events, though none of them was meant for this watcher."""


class EventSelection(NamedTuple):
    namespace: str | None
    worker: str | None


class Cursor(NamedTuple):
    """How far a watcher has read a shard's log."""

    seq: int
    deleted_before: int | None = None
    """How many events of the shard had been deleted when the watch from the beginning began; None for any other watch."""

    def misses(self, deleted: DeletedEvents) -> bool:
        return deleted.through_seq > self.seq and deleted.events != self.deleted_before


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
        self._changed: dict[EventSelection, asyncio.Event] = {}
        """Set when there may be new events for watchers of a selection."""
        self._watchers: Counter[EventSelection] = Counter()
        self._closed = False
        self._remote_heads: dict[int, int] = {}
        """The known durable sequence of each shard that another node serves."""
        self._watcher_count = 0
        self._on_watching_changed = on_watching_changed

    def close(self) -> None:
        self._closed = True
        self._wake_watchers()

    def is_behind(self, heads: Mapping[int, int]) -> bool:
        """Whether any of these logs of other nodes' shards would be longer than is known here."""
        return any(
            seq > self._remote_heads.get(id, 0) and not self._node.serves(id) for id, seq in heads.items()
        )

    def update_remote_heads(self, heads: Mapping[int, int]) -> None:
        """Note how far the logs of other nodes' shards are durable, as the database says. A shard commits in order, so all entries up to that
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
        if not self._changed:
            return
        committed = {
            (entry.namespace, entry.worker)
            for commit in commits
            if commit.feed_seq
            for entry in commit.commit.entries
            if type(entry.event) is not RenewalBatch
        }
        selections = {EventSelection(*names) for names in committed}
        selections |= {EventSelection(namespace, None) for namespace, _ in committed}
        if committed:
            selections.add(EventSelection(None, None))
        for selection in selections:
            self._wake(selection)

    def _wake_watchers(self) -> None:
        for selection in tuple(self._changed):
            self._wake(selection)

    def _wake(self, selection: EventSelection) -> None:
        """Wake the present waiters; later ones wait for the next change."""
        if (changed := self._changed.pop(selection, None)) is not None:
            changed.set()

    async def watch(
        self, selection: EventSelection, resume_token: str, from_beginning: bool
    ) -> AsyncIterator[EventBatch]:
        if self._watcher_count >= WATCHERS_MAX:
            raise TooManyWatchers(limit=WATCHERS_MAX)
        self._watchers[selection] += 1
        self._watcher_count += 1
        if self._watcher_count == 1:
            self._on_watching_changed(True)
        try:
            async for batch in self._watch(selection, resume_token, from_beginning):
                yield batch
        finally:
            self._watcher_count -= 1
            self._watchers[selection] -= 1
            if not self._watchers[selection]:
                del self._watchers[selection]
                self._changed.pop(selection, None)
            if not self._watcher_count:
                self._on_watching_changed(False)

    async def _watch(
        self, selection: EventSelection, resume_token: str, from_beginning: bool
    ) -> AsyncIterator[EventBatch]:
        shard_ids = self._shard_ids(selection)
        heads = await self._load_heads()
        deleted = await self._node.store.read_deletions(shard_ids, selection.namespace)
        if resume_token:
            cursors = self._parse_token(resume_token, selection, shard_ids, heads)
            _check_nothing_missed(cursors, deleted)
        elif from_beginning:
            cursors = {id: Cursor(0, deleted[id].events if id in deleted else None) for id in shard_ids}
        else:
            cursors = {id: Cursor(heads[id]) for id in shard_ids}
        clock = self._node.clock
        yield EventBatch(shard_ids[0], [], self._make_token(cursors, selection))
        sent, sent_ms = dict(cursors), clock.monotonic_ms()
        while True:
            changed = self._changed.setdefault(selection, asyncio.Event())
            if self._closed:
                raise ShuttingDown
            more = False
            for shard_id in shard_ids:
                through_seq = self._readable_through_seq(shard_id)
                cursor = cursors[shard_id]
                if cursor.seq >= through_seq:
                    continue
                entries, newly_deleted = await self._node.store.read_feed(
                    shard_id, cursor.seq, through_seq, EVENTS_PER_RESPONSE_MAX,
                    namespace=selection.namespace, worker=selection.worker, bytes_max=PAGE_BYTES_MAX,
                )  # fmt: skip
                _check_nothing_missed({shard_id: cursor}, {shard_id: newly_deleted})
                full = len(entries) == EVENTS_PER_RESPONSE_MAX or entries.is_cut
                read_seq = entries[-1].seq if full else through_seq
                is_catching_up = newly_deleted.through_seq > read_seq
                cursors[shard_id] = Cursor(read_seq, cursor.deleted_before if is_catching_up else None)
                more = more or full
                if entries:
                    yield EventBatch(shard_id, entries, self._make_token(cursors, selection))
                    sent, sent_ms = dict(cursors), clock.monotonic_ms()
            if more:
                continue
            wait_ms = sent_ms + BOOKMARK_INTERVAL_MS - clock.monotonic_ms()
            if wait_ms > 0 and await wait_for_event(changed, clock, wait_ms):
                continue
            if changed.is_set():
                continue
            # Not woken, so nothing that was committed here since was for this watcher.
            for shard_id in shard_ids:
                if self._node.serves(shard_id) and cursors[shard_id].seq < (
                    seq := self._readable_through_seq(shard_id)
                ):
                    cursors[shard_id] = Cursor(seq)
            if sent != cursors:
                yield EventBatch(shard_ids[0], [], self._make_token(cursors, selection))
            sent, sent_ms = dict(cursors), clock.monotonic_ms()

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

    def _make_token(self, cursors: Mapping[int, Cursor], selection: EventSelection) -> str:
        positions = [cursor.seq for cursor in cursors.values()]
        counts = [cursor.deleted_before for cursor in cursors.values()]
        if counts.count(None) < len(counts):
            positions += [0 if count is None else count + 1 for count in counts]
        return tokens.issue(positions, *self._token_scope(selection))

    def _parse_token(
        self, token: str, selection: EventSelection, shard_ids: Sequence[int], heads: Mapping[int, int]
    ) -> dict[int, Cursor]:
        """The token has a sequence per shard, followed, for a watch from the beginning that has not caught up, by a count per
        shard: 0 for none, else one more than `Cursor.deleted_before`."""
        positions = tokens.redeem(
            token, list[tokens.Sequence], ResumeTokenInvalid, *self._token_scope(selection)
        )
        sequences, counts = positions[: len(shard_ids)], positions[len(shard_ids) :]
        if len(sequences) != len(shard_ids) or len(counts) not in (0, len(shard_ids)):
            raise ResumeTokenInvalid
        cursors = {
            shard_id: Cursor(seq, count - 1 if count else None)
            for shard_id, seq, count in zip(shard_ids, sequences, counts or [0] * len(sequences), strict=True)
        }
        # A position beyond the end comes from another database.
        if any(cursor.seq > heads[shard_id] for shard_id, cursor in cursors.items()):
            raise ResumeTokenInvalid
        return cursors


def _check_nothing_missed(cursors: Mapping[int, Cursor], deleted: Mapping[int, DeletedEvents]) -> None:
    """Refuse a watcher if events were deleted that it has not read."""
    gaps = {
        shard_id: (cursor, deleted[shard_id])
        for shard_id, cursor in cursors.items()
        if shard_id in deleted and cursor.misses(deleted[shard_id])
    }
    if not gaps:
        return
    missing = sum(gone.missing_after(cursor.seq) for cursor, gone in gaps.values())
    shards = ", ".join(map(str, sorted(gaps)))
    newest_ms = max(gone.newest_wall_ms for _, gone in gaps.values())
    since = wire.timestamp(newest_ms).ToJsonString() if newest_ms else ""
    raise ResumeTokenInvalid(
        why=f"retention has deleted up to {missing} {'event' if missing == 1 else 'events'} after it, in shards {shards}"
        + (f", the newest of {since}" if since else "")
        + "; read the current state, and watch again without it",
        shards=shards,
        missing_events=missing,
        complete_since=since,
    )
