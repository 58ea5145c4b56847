import pytest

from tests.shard.quiet import quiet

pytest.register_assert_rewrite("tests.model.machine", "tests.model.ledger")

__all__ = ["quiet"]
