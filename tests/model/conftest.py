import pytest

from tests.integration.quiet_logs import quiet

pytest.register_assert_rewrite(
    "tests.model.workers.state_machine",
    "tests.model.workers.commit_checker",
    "tests.model.progress.state_machine",
)

__all__ = ["quiet"]
