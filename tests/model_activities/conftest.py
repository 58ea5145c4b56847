import pytest

from tests.shard.quiet import quiet

pytest.register_assert_rewrite("tests.model_activities.journal", "tests.model_activities.walk")

__all__ = ["quiet"]
