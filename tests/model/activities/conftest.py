from collections.abc import Iterator

import pytest

from liveness.dispatch import reconciler
from tests.integration.quiet_logs import quiet

pytest.register_assert_rewrite(
    "tests.model.activities.activity_checker", "tests.model.activities.client_steps"
)

__all__ = ["quiet"]


@pytest.fixture(autouse=True, scope="module")
def short_reconciler_delays() -> Iterator[None]:
    """Shorten the reconciler's delays, because walks are short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reconciler, "UNBOUND_GRACE_MS", 1_500)
        patch.setattr(reconciler, "RECONCILE_INTERVAL_MS", 3_000)
        yield
