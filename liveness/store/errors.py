"""How a store can fail. The shard's answer to each is fixed: see `liveness.engine.committer`.

StoreError
├── ShardsLost            another owner raised their epoch; nothing was committed
├── CommitRejected        nothing was committed, and it is known
├── CommitUnknown         it may or may not have been committed
├── ReadFailed            the answer is not known; nothing was to change
├── StoreBroken           durability can no longer be promised: stop acknowledging and exit
└── StoreUnusable         the store cannot be opened
    ├── WrittenByNewerVersion
    ├── WrongShardCount
    ├── StoreInUse
    ├── RestoreInterrupted
    ├── NotABackup
    ├── CorruptRow
    ├── LogIncomplete
    └── LogDamaged
"""

from __future__ import annotations

from collections.abc import Iterable
from inspect import cleandoc


class StoreError(Exception):
    """The store failed: {detail}."""

    def __init__(self, **fields: object) -> None:
        self.fields = fields
        super().__init__(cleandoc(type(self).__doc__ or "").format(**fields))


class ShardsLost(StoreError):
    """Another owner took over shards {shard_ids}."""

    def __init__(self, shard_ids: Iterable[int]) -> None:
        self.shard_ids = frozenset(shard_ids)
        super().__init__(shard_ids=sorted(self.shard_ids))


class CommitRejected(StoreError):
    """Nothing was committed: {detail}."""


class CommitUnknown(StoreError):
    """It is not known whether the commit took place: {detail}."""


class ReadFailed(StoreError):
    """The database could not be read: {detail}."""


class StoreBroken(StoreError):
    """The disk no longer keeps what it is given: {detail}."""


class StoreUnusable(StoreError):
    """The database cannot be used: {detail}."""


class WrittenByNewerVersion(StoreUnusable):
    """The database holds {what}, which this version does not know; start the version that wrote it, or a newer one."""


class WrongShardCount(StoreUnusable):
    """The database was created with {stored} shards, not {requested}; start with --shards {stored}."""


class StoreInUse(StoreUnusable):
    """{path} is in use by another liveness server{holder}; stop it first or choose another file with --db."""


class RestoreInterrupted(StoreUnusable):
    """A backup was being restored to {path} and that was interrupted; run `liveness restore` again."""


class NotABackup(StoreUnusable):
    """{path} is not a whole backup: {detail}; use another one, or make a new one with `liveness backup`."""


class CorruptRow(StoreUnusable):
    """The row at {place} of table {table} does not match its checksum; restore the database from a backup."""


class LogIncomplete(StoreUnusable):
    """Of the log of shard {shard_id}, entries between {after} and {head} are missing or out of order; restore the database from a backup."""


class WalDamaged(StoreUnusable):
    """{path} is damaged, and commits that were acknowledged would be lost; restore the database from a backup."""
