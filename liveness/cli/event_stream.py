"""Follow the event log without gaps while servers restart, move shards or hang."""

from __future__ import annotations

import _thread
import errno
import select
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from threading import Event, Thread

import grpc

from liveness.cli.client import Client, ServerUnavailable
from liveness.cli.errors import CommandError
from liveness.v1.service_pb2 import GetServerInfoRequest, WatchEventsRequest, WatchEventsResponse

RETRY_S_MIN = 0.1
RETRY_S_MAX = 3.0


def follow_events(
    client: Client, request: WatchEventsRequest, notify: Callable[[str], None]
) -> Iterator[WatchEventsResponse]:
    """Yield every answer once, in order. After the first answer, wait for a missing server, and report that to `notify`."""
    connection: AbstractContextManager[Client] = nullcontext(client)
    has_received, is_broken, retry_s = False, False, RETRY_S_MIN
    while True:
        try:
            with connection as current:
                for answer in _read_stream(current, request):
                    if is_broken:
                        notify(f"Continuing where the stream broke, at {current.address}.")
                    has_received, is_broken, retry_s = True, False, RETRY_S_MIN
                    # Set before the yield: a caller that asks for the next answer has seen this one.
                    request.resume_token = answer.resume_token
                    yield answer
        except ServerUnavailable as error:
            if not has_received:
                raise
            if not is_broken:
                notify(f"The stream broke: {error.message.rstrip('.')}. Trying again.")
            is_broken = True
        Event().wait(retry_s)
        retry_s = min(2 * retry_s, RETRY_S_MAX)
        connection = client.reconnect()


def _read_stream(client: Client, request: WatchEventsRequest) -> Iterator[WatchEventsResponse]:
    """Yield the answers of one stream until it breaks. A quiet stream does not show that its server hangs, so a thread calls
    the server at intervals."""
    # Before the stream, and not beside it: a stream that is cancelled before its channel is connected may never end.
    _probe(client)
    stream = client.liveness.WatchEvents(request)
    stream_ended = Event()
    probe_errors: list[ServerUnavailable] = []

    def probe_server() -> None:
        while not stream_ended.wait(client.timeout_s):
            try:
                _probe(client)
            except ServerUnavailable as error:
                probe_errors.append(error)
                stream.cancel()
                return
            except ValueError:
                return  # the channel is closed

    Thread(target=probe_server, name="server-probe", daemon=True).start()
    try:
        yield from stream
    except grpc.RpcError as error:
        raise next(iter(probe_errors), client.to_error(error)) from error
    finally:
        stream_ended.set()
        stream.cancel()


def _probe(client: Client) -> None:
    try:
        client.call(client.liveness.GetServerInfo, GetServerInfoRequest())
    except ServerUnavailable:
        raise
    except CommandError:
        pass  # an error reply shows that the server answers


@contextmanager
def exit_when_unread(descriptor: int | None) -> Iterator[None]:
    """End the command when the reader of its output pipe is gone, without waiting for the next write."""
    reader_gone = Event()

    def wait_for_hangup(descriptor: int) -> None:
        poll = select.poll()
        poll.register(descriptor, 0)  # poll always reports errors
        poll.poll()
        reader_gone.set()
        _thread.interrupt_main()

    if descriptor is not None:
        Thread(target=wait_for_hangup, args=(descriptor,), name="pipe-watch", daemon=True).start()
    try:
        yield
    except KeyboardInterrupt:
        if reader_gone.is_set():
            raise BrokenPipeError(errno.EPIPE, "the reader of the pipe is gone") from None
        raise
