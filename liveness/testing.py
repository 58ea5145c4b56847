"""For tests of programs that use liveness: a whole server in the test's process, and a clock to drive it.

settings = Settings(db=f"sqlite:///{tmp_path}/liveness.db", listen="127.0.0.1:0")
async with Server(settings, clock=ManualClock(), self_driven=False) as server:
    ...                           # real gRPC on server.address
    await server.advance(30_000)  # thirty seconds pass; what falls due happens
"""

from liveness.app import Server
from liveness.clock import ManualClock
from liveness.settings import Settings

__all__ = ["ManualClock", "Server", "Settings"]
