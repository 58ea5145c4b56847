"""Following the log for as long as anybody wants to: servers may restart, move shards or hang in between."""

from __future__ import annotations

import _thread
import errno
import select
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Event, Thread

import grpc

from liveness.cli.client import Away, Client
from liveness.cli.failure import Failure
from liveness.v1.service_pb2 import GetServerInfoRequest, WatchEventsRequest, WatchEventsResponse

AGAIN_S_MIN = 0.1
AGAIN_S_MAX = 3.0


def follow(
    client: Client, request: WatchEventsRequest, say: Callable[[str], None]
) -> Iterator[WatchEventsResponse]:
    """Every answer once, in order. Once there was one, a server that is away is waited for, and `say` is told so."""
    connection: AbstractContextManager[Client] = nullcontext(client)
    heard, broken, again_s = False, False, AGAIN_S_MIN
    while True:
        try:
            with connection as current:
                for answer in _answers(current, request):
                    if broken:
                        say(f"Going on where it broke off, at {current.address}.")
                    heard, broken, again_s = True, False, AGAIN_S_MIN
                    # Before it is handed on: whoever asks for the next has seen this one.
                    request.resume_token = answer.resume_token
                    yield answer
        except Away as error:
            if not heard:
                raise
            if not broken:
                say(f"Broken off: {error.message.rstrip('.')}. Trying again.")
            broken = True
        Event().wait(again_s)
        again_s = min(2 * again_s, AGAIN_S_MAX)
        connection = client.anew()


def _answers(client: Client, request: WatchEventsRequest) -> Iterator[WatchEventsResponse]:
    """Those of one stream, until it breaks or its server hangs, of which a stream on which nothing happens says nothing."""
    stream = client.liveness.WatchEvents(request)
    over = Event()
    hung: list[Away] = []

    def ask_now_and_then() -> None:
        while True:
            try:
                client.call(client.liveness.GetServerInfo, GetServerInfoRequest())
            except Away as error:
                hung.append(error)
                stream.cancel()
                return
            except Failure:
                pass  # a refusal is an answer
            except ValueError:
                return  # the channel is closed
            if over.wait(client.timeout_s):
                return

    Thread(target=ask_now_and_then, name="is-the-server-there", daemon=True).start()
    try:
        yield from stream
    except grpc.RpcError as error:
        raise next(iter(hung), client.failure(error)) from error
    finally:
        over.set()
        stream.cancel()


@contextmanager
def until_nobody_reads(descriptor: int | None) -> Iterator[None]:
    """A pipe whose reader is gone ends the command now, not when there is something to be written again."""
    gone = Event()

    def wait_for_the_end(descriptor: int) -> None:
        poll = select.poll()
        poll.register(descriptor, 0)  # errors are always told
        poll.poll()
        gone.set()
        _thread.interrupt_main()

    if descriptor is not None:
        Thread(target=wait_for_the_end, args=(descriptor,), name="is-anybody-reading", daemon=True).start()
    try:
        yield
    except KeyboardInterrupt:
        if gone.is_set():
            raise BrokenPipeError(errno.EPIPE, "nobody reads any more") from None
        raise
