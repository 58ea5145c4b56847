from tests.end_to_end.conftest import make_server
from tests.shard.quiet import quiet

__all__ = ["make_server", "quiet"]
