"""The broker: one connection to NATS JetStream, and one verdict for all on whether it takes messages.

    AWAY ──connected, and the stream is there──► TRIAL ──one message was answered──► READY
      ▲                                            │                                  │
      └── no connection, no leader, no answer in time, no room: whatever it is, it is not the message's fault ──┘

While it is AWAY, publishing fails at once and touches no network; one task tries to connect, with growing pauses that
only an acknowledgement ends. In TRIAL one message goes ahead and all others wait for what becomes of it. So an outage
costs the broker a few packets however much waits here. Messages are sent without waiting for earlier ones'
acknowledgements.

The client's own way of connecting again is switched off: it would keep messages in memory and send them some time
later, when somebody else may own their shard.
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
from liveness.relays import ALL, MESSAGE_ID_HEADER
from tasks.sinks import SinkAway

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg

logger = structlog.get_logger("liveness.relay")

IN_FLIGHT_MAX = 2_000
CONNECT_TIMEOUT_S = 10.0
ACK_TIMEOUT_S = 5.0
"""A stream whose leader was killed is without one for 4 to 8 s; waiting longer for an answer would gain nothing."""
BACKOFF_MS_MIN = 200
BACKOFF_MS_MAX = 15_000
DUPLICATE_WINDOW_S = 600.0
REASON_CHARS_MAX = 300

# By JetStream's own numbers: about the stream, although they are answers to a message.
_STREAM_DIFFERS = 10060
_STREAM_SEALED = 10109
_NAME_IN_USE = 10058


class BrokerAway(SinkAway):
    """It takes nothing now."""


class MessageRefused(Exception):
    """It took this message for a bad one. Says why."""


class ClientMissing(Exception):
    """A Python package is not installed. Says which."""


class Place(NamedTuple):
    servers: tuple[str, ...]
    """URLs, which may hold passwords."""
    servers_for_people: tuple[str, ...]
    creds_file: str
    stream: str
    replicas: int


class State(Enum):
    AWAY = "away"
    TRIAL = "connected, nothing published yet"
    READY = "ready"


class Broker:
    def __init__(self, place: Place, clock: Clock, random: Random) -> None:
        check_client(place)
        self.place = place
        self.state = State.AWAY
        self.last_error = ""
        self.last_error_wall_ms = 0
        self.on_back: list[Callable[[], None]] = []
        """Told when it may be published to again."""
        self._why = "not connected yet"
        self._clock = clock
        self._random = random
        self._failures = 0
        """Since the last acknowledgement."""
        self._client: Client | None = None
        self._lost = asyncio.Event()
        self._trial: asyncio.Future[None] | None = None
        self._free = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._numbers = count(1)
        self._inbox = ""
        self._noted = ""
        """What the client said last about the connection."""
        self._answers: dict[str, asyncio.Future[Msg]] = {}

    @property
    def is_away(self) -> bool:
        return self.state is State.AWAY

    def trouble(self) -> str:
        """Why it takes nothing; empty if it does."""
        return self.last_error or "it is away" if self.is_away else ""

    # -- publishing

    async def publish(self, subject: str, message_id: str, payload: bytes) -> bool:
        """Return when the stream has acknowledged it; true if it had it already. Raises `BrokerAway`,
        `MessageRefused`."""
        async with self._free:
            trial = await self._admit()
            try:
                return await self._send(subject, message_id, payload)
            finally:
                if trial is not None and not trial.done():
                    trial.set_result(None)  # cancelled: the next one is the trial
                    self._trial = None

    async def _admit(self) -> asyncio.Future[None] | None:
        """Returns the trial for whoever is on trial."""
        while self.state is State.TRIAL:
            if self._trial is None:
                self._trial = asyncio.get_running_loop().create_future()
                return self._trial
            await asyncio.shield(self._trial)
        return None

    async def _send(self, subject: str, message_id: str, payload: bytes) -> bool:
        client = self._client
        if client is None or self.state is State.AWAY:
            raise BrokerAway(self._why)
        import nats.errors

        number = str(next(self._numbers))
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            async with asyncio.timeout(ACK_TIMEOUT_S):
                await client.publish(
                    subject,
                    payload,
                    reply=f"{self._inbox}.{number}",
                    headers={MESSAGE_ID_HEADER: message_id, "Nats-Expected-Stream": self.place.stream},
                )
                message = await answer
        except nats.errors.MaxPayloadError:
            self._answered()
            raise MessageRefused(
                f"{len(payload)} bytes are more than the broker takes ({client.max_payload})"
            ) from None
        except TimeoutError:
            why = self._noted or f"no acknowledgement within {ACK_TIMEOUT_S:g} s"
            raise self._give_up(client, why) from None
        except _trouble() as error:
            raise self._give_up(client, _reason(error)) from error
        finally:
            self._answers.pop(number, None)
        return self._judge(client, message)

    def _judge(self, client: Client, message: Msg) -> bool:
        if message.headers and message.headers.get("Status") == "503":
            raise self._give_up(client, f"no stream takes {ALL} now")
        answer: dict[str, Any] = json.loads(message.data)
        error = answer.get("error")
        if error is None:
            self._answered()
            return bool(answer.get("duplicate"))
        why = f"{error.get('description')} ({error.get('err_code')})"
        if error.get("code") == 400 and error.get("err_code") not in (_STREAM_DIFFERS, _STREAM_SEALED):
            self._answered()
            raise MessageRefused(f"the broker refused it: {why}"[:REASON_CHARS_MAX])
        raise self._give_up(client, why)

    def _answered(self) -> None:
        self._failures = 0
        if self.state is State.TRIAL:
            self.state = State.READY
            self._end_trial()

    async def _on_answer(self, message: Msg) -> None:
        answer = self._answers.get(message.subject.rpartition(".")[2])
        if answer is not None and not answer.done():
            answer.set_result(message)

    # -- the connection

    async def run(self) -> None:
        """Connect, and connect again whenever it is lost."""
        try:
            while True:
                self._lost.clear()
                await self._connect()
                if self.state is not State.AWAY:
                    logger.info("broker connected", stream=self.place.stream)
                    for tell in self.on_back:
                        tell()
                await self._lost.wait()
                await self._disconnect()
                pause_ms = min(BACKOFF_MS_MIN * 2 ** min(self._failures - 1, 20), BACKOFF_MS_MAX)
                await self._clock.sleep(pause_ms * self._random.uniform(0.5, 1.0))
        finally:
            self._let_go(BrokerAway("the server is stopping"))
            await self._disconnect()

    async def _connect(self) -> None:
        from nats.aio.client import Client

        self._client = client = Client()
        self._noted = ""

        async def note(error: Exception) -> None:
            self._noted = _reason(error)

        async def closed() -> None:
            self._give_up(client, self._noted or "the connection broke")

        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await client.connect(
                    servers=list(self.place.servers),
                    name="liveness",
                    error_cb=note,
                    closed_cb=closed,
                    allow_reconnect=False,
                    connect_timeout=2,
                    reconnect_time_wait=0,
                    max_reconnect_attempts=1,
                    ping_interval=20,
                    user_credentials=self.place.creds_file or None,
                )
                self._inbox = client.new_inbox()
                await client.subscribe(f"{self._inbox}.*", cb=self._on_answer)
                await self._find_stream(client)
        except TimeoutError:
            self._give_up(client, self._noted or "it does not answer")
        except _trouble() as error:
            self._give_up(client, self._noted or _reason(error))
        else:
            if not self._lost.is_set():
                self.state = State.TRIAL

    async def _find_stream(self, client: Client) -> None:
        """Make it if it is missing; one that exists is its owner's affair."""
        from nats.js.api import StorageType, StreamConfig
        from nats.js.errors import BadRequestError, NotFoundError

        streams = client.jetstream(timeout=ACK_TIMEOUT_S)
        try:
            await streams.stream_info(self.place.stream)
        except NotFoundError:
            config = StreamConfig(
                name=self.place.stream,
                subjects=[ALL],
                storage=StorageType.FILE,
                num_replicas=self.place.replicas,
                duplicate_window=DUPLICATE_WINDOW_S,
            )
            try:
                await streams.add_stream(config)
                logger.info("stream created", stream=self.place.stream, replicas=self.place.replicas)
            except BadRequestError as error:
                if error.err_code != _NAME_IN_USE:  # another node was faster
                    raise

    def _give_up(self, client: Client | None, why: str) -> BrokerAway:
        """Nobody publishes over this connection any more, and all who wait for an answer are told."""
        away = BrokerAway(f"the broker is away: {why}"[:REASON_CHARS_MAX])
        if client is not self._client or self._lost.is_set():
            return away  # of a connection that was given up before
        self._failures += 1
        self.last_error = str(away)
        self.last_error_wall_ms = self._clock.wall_ms()
        if self._failures == 1:
            logger.warning("broker away", why=why, unanswered=len(self._answers))
        self._let_go(away)
        return away

    def _let_go(self, away: BrokerAway) -> None:
        self.state = State.AWAY
        self._why = str(away)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(away)
        self._lost.set()
        self._end_trial()

    def _end_trial(self) -> None:
        if self._trial is not None and not self._trial.done():
            self._trial.set_result(None)
        self._trial = None

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    await client.close()
            except _trouble() as error:  # a time-out is one of them
                logger.debug("connection not closed in order", why=_reason(error))


def check_client(place: Place) -> None:
    """The client is an extra: who relays nothing need not have it."""
    if find_spec("nats") is None:
        raise ClientMissing("a relay needs the package nats-py; install liveness[nats]")
    if place.creds_file and find_spec("nkeys") is None:
        raise ClientMissing("a file of NATS credentials needs the package nkeys; install nats-py[nkeys]")


def _trouble() -> tuple[type[Exception], ...]:
    """What the client raises when the connection is not well; the last ones are how it stumbles over one that is gone."""
    import nats.errors

    return (nats.errors.Error, OSError, EOFError, AttributeError, AssertionError, RuntimeError, ValueError)


def _reason(error: Exception) -> str:
    text = str(error).removeprefix("nats: ") or type(error).__name__
    return " ".join(text.split())[:REASON_CHARS_MAX]
