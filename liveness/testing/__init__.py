"""Test programs that use liveness: a complete server in the process of the test, and a clock that the test moves.

With pytest, in conftest.py:

    pytest_plugins = ["liveness.testing.fixtures"]

and then, in tests with or without asyncio:

    def test_that_lost_work_is_stopped(liveness_server):
        with Worker(liveness_server.address, task_queue="q") as worker:
            with pytest.raises(LeaseLost), worker.bind(ActivityRef("order-7")) as binding:
                liveness_server.advance(60)  # one minute passes on the server, and due timers run
                assert binding.lost.wait_blocking(10)

The server's clock stands still until the test moves it; the worker's own clock is the real one.
"""

from liveness.clock import ManualClock
from liveness.config.extras import server_parts_needed
from liveness.config.settings import Settings

try:
    from liveness.app import Server
    from liveness.testing.local_server import LocalServer
except ModuleNotFoundError as error:
    raise ImportError(server_parts_needed("liveness.testing")) from error

__all__ = ["LocalServer", "ManualClock", "Server", "Settings"]
