from tests.integration.quiet_logs import quiet
from tests.system.server.conftest import make_server

__all__ = ["make_server", "quiet"]
