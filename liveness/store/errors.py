"""All failures of a store. `liveness.engine.committer` lists how a shard reacts to each.

StoreError
├── ShardsLost            another owner raised their epoch; nothing was committed
├── CommitRejected        certainly nothing was committed
│   └── NoSpaceLeft       because the disk is full
├── CommitUnknown         it may or may not have been committed
├── ReadFailed            a read failed; it would have changed nothing
│   └── ValueRefused      because of a value in the query: it fails every time
├── StoreBroken           durability can no longer be promised: stop acknowledging and exit
└── StoreUnusable         the store cannot be opened
    ├── CannotOpenStore
    ├── WrittenByNewerVersion
    ├── WrongShardCount
    ├── StoreInUse
    ├── RestoreInterrupted
    ├── RestoreUnfinished
    ├── NodeServes
    ├── DatabaseReplaced
    ├── RestoredMeanwhile
    ├── NotABackup
    ├── CorruptRow
    ├── LogIncomplete
    └── WalDamaged
"""

from __future__ import annotations

from pathlib import Path

from liveness.templated_error import TemplatedError


class StoreError(TemplatedError):
    template = "The store failed."


class ShardsLost(StoreError):
    template = "Another owner took over shards {shard_ids}."

    shard_ids: frozenset[int]

    def __str__(self) -> str:
        return self.template.format(shard_ids=sorted(self.shard_ids))


class CommitRejected(StoreError):
    template = "Nothing was committed: {detail}."

    detail: str


class NoSpaceLeft(CommitRejected):
    template = "Nothing was committed, because the disk of the database is full: {detail}."


class CommitUnknown(StoreError):
    template = "It is not known whether the commit took place: {detail}."

    detail: str


class ReadFailed(StoreError):
    template = "The database could not be read: {detail}."

    detail: str


class ValueRefused(ReadFailed):
    template = "The database takes no such value: {detail}."


class StoreBroken(StoreError):
    template = "The disk does not keep what is written to it: {detail}."

    detail: str


class StoreUnusable(StoreError):
    template = "The database cannot be used."


class CannotOpenStore(StoreUnusable):
    template = "The database cannot be used: {detail}."

    detail: str


class WrittenByNewerVersion(StoreUnusable):
    template = "The database holds {what}, which this version does not know; start the version that wrote it, or a newer one."

    what: str


class WrongShardCount(StoreUnusable):
    template = "The database was created with {stored} shards, not {requested}; start with --shards {stored}."

    stored: int
    requested: int


class StoreInUse(StoreUnusable):
    template = (
        "{path} is in use by another liveness server{holder}; stop it first or choose another file with --db."
    )

    path: Path
    holder: str


class RestoreInterrupted(StoreUnusable):
    template = "A backup was being restored to {path} and that was interrupted; run `liveness restore` again."

    path: Path


class RestoreUnfinished(StoreUnusable):
    template = (
        "`liveness restore --already-restored` has begun on this database and has not ended; run it again."
    )


class NodeServes(StoreUnusable):
    template = "Nothing was changed: node {node_id} serves this database; stop all nodes, then run the command again."

    node_id: str


class DatabaseReplaced(StoreUnusable):
    template = (
        "The database was restored or copied since a node last served it ({how}): run `liveness restore --already-restored`,"
        " or `liveness restore --moved` if no commit is missing, as docs/operations.md says."
    )

    how: str


class RestoredMeanwhile(StoreUnusable):
    template = "The database was restored while this node was running; restart the node."


class NotABackup(StoreUnusable):
    template = "{path} is not a complete backup: {detail}; use another one, or make a new one with `liveness backup`."

    path: Path
    detail: str


class CorruptRow(StoreUnusable):
    template = (
        "The row at {row} of table {table} does not match its checksum; restore the database from a backup."
    )

    row: str
    table: str


class LogIncomplete(StoreUnusable):
    template = "Entries between {after} and {head} are missing or out of order in the log of shard {shard_id}; restore the database from a backup."

    shard_id: int
    after: int
    head: int


class WalDamaged(StoreUnusable):
    template = "{path} is damaged, and commits that were acknowledged would be lost; restore the database from a backup."

    path: Path
