"""The connection to NATS JetStream, with one state for all publishers.

    DOWN ──connected, and the stream exists──► PROBING ──one message was answered──► READY
      ▲                                           │                                    │
      └── no connection, no leader, no answer in time, no room: anything that is not the message's fault ──┘

In DOWN, publishing fails at once and touches no network; one task tries to connect, with growing pauses that only an
acknowledgement resets. In PROBING, one message is sent and all others wait for its outcome. So an outage costs the broker a few
packets, however many messages wait. In READY, messages are sent without waiting for the acknowledgements of earlier ones.

The client's own reconnection is switched off: it would keep messages in memory and send them later, when another node may own
their shard.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from enum import Enum
from importlib.util import find_spec
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import structlog

from liveness.clock import Clock
from liveness.integrations.relay.subjects import ALL, MESSAGE_ID_HEADER
from liveness.tasks.sinks import SinkDown

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

logger = structlog.get_logger("liveness.relay")

IN_FLIGHT_MAX = 2_000
CONNECT_TIMEOUT_S = 10.0
ACK_TIMEOUT_S = 5.0
"""A stream has no leader for 4 to 8 s after its leader was killed; waiting longer for an answer would gain nothing."""
BACKOFF_MS_MIN = 200
BACKOFF_MS_MAX = 15_000
DUPLICATE_WINDOW_S = 600.0
REASON_CHARS_MAX = 300

# JetStream's error numbers for problems of the stream, although they answer a message.
_STREAM_MISMATCH = 10060
_STREAM_SEALED = 10109
_NAME_IN_USE = 10058


class BrokerDown(SinkDown):
    """The broker accepts no messages now."""


class MessageRefused(Exception):
    """The broker refused this message. The text says why."""


class NatsClientMissing(Exception):
    """A Python package is not installed. The text says which."""


class BrokerConfig(NamedTuple):
    servers: tuple[str, ...]
    """URLs, which may hold passwords."""
    servers_redacted: tuple[str, ...]
    creds_file: str
    stream: str
    replicas: int


class BrokerState(Enum):
    DOWN = "unavailable"
    PROBING = "connected, nothing published yet"
    READY = "ready"


def no_publishes() -> dict[str, int]:
    return {"acknowledged": 0, "duplicate": 0, "refused": 0, "down": 0}


class Broker:
    def __init__(self, config: BrokerConfig, clock: Clock, random: Random) -> None:
        check_client_installed(config)
        self.config = config
        self.state = BrokerState.DOWN
        self.last_error = ""
        self.last_error_wall_ms = 0
        self.on_connected: list[Callable[[], None]] = []
        """Called when the broker is connected again."""
        self.publishes = no_publishes()
        """Messages by outcome."""
        self._down_reason = "not connected yet"
        self._clock = clock
        self._random = random
        self._failures = 0
        """Since the last acknowledgement."""
        self._client: Client | None = None
        self._connection_lost = asyncio.Event()
        self._probe: asyncio.Future[None] | None = None
        self._in_flight_slots = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._ack_numbers = count(1)
        self._inbox = ""
        self._client_error = ""
        """The last error that the NATS client reported."""
        self._pending_acks: dict[str, asyncio.Future[Msg]] = {}

    @property
    def is_down(self) -> bool:
        return self.state is BrokerState.DOWN

    def down_reason(self) -> str:
        """Why the broker accepts no messages; empty if it does."""
        return self.last_error or "the broker is unavailable" if self.is_down else ""

    # -- publishing

    async def publish(self, subject: str, message_id: str, payload: bytes) -> bool:
        """Publish a message and wait for the acknowledgement. Returns whether the stream had the message already. Raises
        `BrokerDown` and `MessageRefused`."""
        async with self._in_flight_slots:
            probe = await self._await_probe()
            try:
                is_duplicate = await self._send(subject, message_id, payload)
            except BrokerDown:
                self.publishes["down"] += 1
                raise
            except MessageRefused:
                self.publishes["refused"] += 1
                raise
            else:
                self.publishes["duplicate" if is_duplicate else "acknowledged"] += 1
                return is_duplicate
            finally:
                if probe is not None and not probe.done():
                    probe.set_result(None)  # cancelled: the next message is the probe
                    self._probe = None

    async def _await_probe(self) -> asyncio.Future[None] | None:
        """Wait while another message probes the broker. Returns a future if this message is the probe."""
        while self.state is BrokerState.PROBING:
            if self._probe is None:
                self._probe = asyncio.get_running_loop().create_future()
                return self._probe
            await asyncio.shield(self._probe)
        return None

    async def _send(self, subject: str, message_id: str, payload: bytes) -> bool:
        client = self._client
        if client is None or self.state is BrokerState.DOWN:
            raise BrokerDown(self._down_reason)
        import nats.errors

        number = str(next(self._ack_numbers))
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._pending_acks[number] = answer
        try:
            async with asyncio.timeout(ACK_TIMEOUT_S):
                await client.publish(
                    subject,
                    payload,
                    reply=f"{self._inbox}.{number}",
                    headers={MESSAGE_ID_HEADER: message_id, "Nats-Expected-Stream": self.config.stream},
                )
                message = await answer
        except nats.errors.MaxPayloadError:
            self._mark_ready()
            raise MessageRefused(
                f"{len(payload)} bytes are more than the broker accepts ({client.max_payload})"
            ) from None
        except TimeoutError:
            why = self._client_error or f"no acknowledgement within {ACK_TIMEOUT_S:g} s"
            raise self._mark_down(client, why) from None
        except _connection_errors() as error:
            raise self._mark_down(client, _reason(error)) from error
        finally:
            self._pending_acks.pop(number, None)
        return self._check_ack(client, message)

    def _check_ack(self, client: Client, message: Msg) -> bool:
        if message.headers and message.headers.get("Status") == "503":
            raise self._mark_down(client, f"no stream accepts {ALL} now")
        answer: dict[str, Any] = json.loads(message.data)
        error = answer.get("error")
        if error is None:
            self._mark_ready()
            return bool(answer.get("duplicate"))
        why = f"{error.get('description')} ({error.get('err_code')})"
        if error.get("code") == 400 and error.get("err_code") not in (_STREAM_MISMATCH, _STREAM_SEALED):
            self._mark_ready()
            raise MessageRefused(f"the broker refused it: {why}"[:REASON_CHARS_MAX])
        raise self._mark_down(client, why)

    def _mark_ready(self) -> None:
        self._failures = 0
        if self.state is BrokerState.PROBING:
            self.state = BrokerState.READY
            self._end_probe()

    async def _on_ack(self, message: Msg) -> None:
        answer = self._pending_acks.get(message.subject.rpartition(".")[2])
        if answer is not None and not answer.done():
            answer.set_result(message)

    # -- the connection

    async def run(self) -> None:
        """Connect, and connect again whenever the connection is lost."""
        try:
            while True:
                self._connection_lost.clear()
                await self._connect()
                if self.state is not BrokerState.DOWN:
                    logger.info("broker connected", stream=self.config.stream)
                    for notify in self.on_connected:
                        notify()
                await self._connection_lost.wait()
                await self._disconnect()
                pause_ms = min(BACKOFF_MS_MIN * 2 ** min(self._failures - 1, 20), BACKOFF_MS_MAX)
                await self._clock.sleep(pause_ms * self._random.uniform(0.5, 1.0))
        finally:
            self._fail_pending(BrokerDown("the server is stopping"))
            await self._disconnect()

    async def _connect(self) -> None:
        from nats.aio.client import Client

        self._client = client = Client()
        self._client_error = ""

        async def on_error(error: Exception) -> None:
            self._client_error = _reason(error)

        async def on_closed() -> None:
            self._mark_down(client, self._client_error or "the connection broke")

        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await client.connect(
                    servers=list(self.config.servers),
                    name="liveness",
                    error_cb=on_error,
                    closed_cb=on_closed,
                    allow_reconnect=False,
                    connect_timeout=2,
                    reconnect_time_wait=0,
                    max_reconnect_attempts=1,
                    ping_interval=20,
                    user_credentials=self.config.creds_file or None,
                )
                self._inbox = client.new_inbox()
                await client.subscribe(f"{self._inbox}.*", cb=self._on_ack)
                await self._ensure_stream(client)
        except TimeoutError:
            self._mark_down(client, self._client_error or "it does not answer")
        except _connection_errors() as error:
            self._mark_down(client, self._client_error or _reason(error))
        else:
            if not self._connection_lost.is_set():
                self.state = BrokerState.PROBING

    async def _ensure_stream(self, client: Client) -> None:
        """Create the stream if it is missing. The configuration of an existing stream is left as it is."""
        from nats.js.api import StorageType, StreamConfig
        from nats.js.errors import BadRequestError, NotFoundError

        streams = client.jetstream(timeout=ACK_TIMEOUT_S)
        try:
            await streams.stream_info(self.config.stream)
        except NotFoundError:
            config = StreamConfig(
                name=self.config.stream,
                subjects=[ALL],
                storage=StorageType.FILE,
                num_replicas=self.config.replicas,
                duplicate_window=DUPLICATE_WINDOW_S,
            )
            try:
                await streams.add_stream(config)
                logger.info("stream created", stream=self.config.stream, replicas=self.config.replicas)
            except BadRequestError as error:
                if error.err_code != _NAME_IN_USE:  # another node was faster
                    raise

    def _mark_down(self, client: Client | None, why: str) -> BrokerDown:
        """Give up this connection and fail all messages that wait for an acknowledgement."""

        down = BrokerDown(f"the broker is unavailable: {why}"[:REASON_CHARS_MAX])
        if client is not self._client or self._connection_lost.is_set():
            return down  # this connection was given up before
        self._failures += 1
        self.last_error = str(down)
        self.last_error_wall_ms = self._clock.wall_ms()
        if self._failures == 1:
            logger.warning("broker unavailable", why=why, unanswered=len(self._pending_acks))
        self._fail_pending(down)
        return down

    def _fail_pending(self, down: BrokerDown) -> None:
        self.state = BrokerState.DOWN
        self._down_reason = str(down)
        for answer in self._pending_acks.values():
            if not answer.done():
                answer.set_exception(down)
        self._connection_lost.set()
        self._end_probe()

    def _end_probe(self) -> None:
        if self._probe is not None and not self._probe.done():
            self._probe.set_result(None)
        self._probe = None

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await client.close()
            except _connection_errors() as error:  # a time-out is one of them
                logger.debug("broker connection not closed cleanly", why=_reason(error))


def check_client_installed(config: BrokerConfig) -> None:
    """The NATS client is an optional dependency, needed only with a relay."""
    if find_spec("nats") is None:
        raise NatsClientMissing("a relay needs the package nats-py; install liveness[nats]")
    if config.creds_file and find_spec("nkeys") is None:
        raise NatsClientMissing("relay_creds_file needs the package nkeys; install nats-py[nkeys]")


def _connection_errors() -> tuple[type[Exception], ...]:
    """The exceptions of the NATS client on a bad connection. The last four are its bugs on a connection that is gone."""
    import nats.errors

    return (nats.errors.Error, OSError, EOFError, AttributeError, AssertionError, RuntimeError, ValueError)


def _reason(error: Exception) -> str:
    text = str(error).removeprefix("nats: ") or type(error).__name__
    return " ".join(text.split())[:REASON_CHARS_MAX]
