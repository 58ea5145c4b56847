from collections.abc import Iterator

import pytest

from liveness.shard import vigil
from tests.shard.quiet import quiet

pytest.register_assert_rewrite("tests.model_activities.journal", "tests.model_activities.walk")

__all__ = ["quiet"]


@pytest.fixture(autouse=True, scope="module")
def impatient_vigil() -> Iterator[None]:
    """As in the product, but sooner: walks are short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vigil, "DOUBT_MS", 1_500)
        patch.setattr(vigil, "SCRUB_MS", 3_000)
        yield
