from tests.shard.quiet import quiet

__all__ = ["quiet"]
