"""The connections to Temporal: one for each connection of a client, so that the bridge multiplexes no more than clients do.

A server may limit the calls of one connection, and every poller occupies one for a minute: with one connection for all,
polls would keep other calls waiting.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import structlog

from liveness.background import RepeatedWarning
from liveness.bridges.temporal.settings import BridgeSettings
from liveness.clock import Clock

logger = structlog.get_logger("liveness.bridge")

OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.max_metadata_size", 1024 * 1024),
    ("grpc.absolute_max_metadata_size", 4 * 1024 * 1024),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 15_000),
)
OWN_CALLS = "bridge"
"""The name under which the bridge itself connects."""
IDLE_MS = 120_000
CHANNELS_MAX = 10_000

Metadata = tuple[tuple[str, str | bytes], ...]


@dataclass(slots=True)
class UpstreamChannel:
    channel: grpc.aio.Channel
    address_index: int
    used_ms: int
    open_calls: int = 0
    admitted: set[str] = field(default_factory=set)
    """Namespaces in which Temporal has served this client."""
    _unary_methods: dict[str, Any] = field(default_factory=dict)

    def unary_method(self, method: str) -> Any:
        """The function that calls a unary method with bytes. `method`: one of those that the bridge knows; each is kept."""
        found = self._unary_methods.get(method)
        if found is None:
            found = self._unary_methods[method] = self.channel.unary_unary(method)
        return found


class Upstream:
    def __init__(self, settings: BridgeSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._channels: dict[str, UpstreamChannel] = {}
        self._next_address = itertools.cycle(range(len(settings.upstream)))
        self._swept_ms = clock.monotonic_ms()
        self._warnings = [
            RepeatedWarning(logger, f"Temporal does not answer at {address}", clock)
            for address in settings.upstream
        ]
        self._away: set[int] = set()
        """The addresses that did not answer last time, by index."""
        self._authorization: dict[str, str | bytes] = {}
        """By namespace: the credential of the worker that called last, for the bridge's own calls; never stored."""

    def channel(self, peer: str) -> UpstreamChannel:
        now_ms = self._clock.monotonic_ms()
        found = self._channels.get(peer)
        if found is None:
            found = self._channels[peer] = self._open(next(self._next_address), now_ms)
        found.used_ms = now_ms
        return found

    def note_answer(self, channel: UpstreamChannel) -> None:
        if channel.address_index in self._away:
            self._away.discard(channel.address_index)
            self._warnings[channel.address_index].resolve()

    def note_unavailable(self, peer: str, why: str) -> None:
        """Use the next address for this client from now on. Calls that run at the last one go on."""
        found = self._channels.get(peer)
        if found is None:
            return
        self._away.add(found.address_index)
        self._warnings[found.address_index].warn(why=why)
        if len(self._settings.upstream) > 1:
            now_ms = self._clock.monotonic_ms()
            self._channels[f"{peer} until {now_ms}"] = found
            following = (found.address_index + 1) % len(self._settings.upstream)
            self._channels[peer] = self._open(following, now_ms)

    def note_authorization(self, namespace: str, metadata: Metadata) -> None:
        for name, value in metadata:
            if name == "authorization":
                self._authorization[namespace] = value

    def own_metadata(self, namespace: str) -> Metadata:
        """The metadata of a call that the bridge makes itself."""
        own: Metadata = (("temporal-namespace", namespace),)
        if self._settings.upstream_api_key:
            return (*own, ("authorization", f"Bearer {self._settings.upstream_api_key}"))
        if (authorization := self._authorization.get(namespace)) is not None:
            return (*own, ("authorization", authorization))
        return own

    def passed_metadata(self, metadata: Metadata) -> Metadata:
        """The metadata of a call that is passed on: the caller's, and the API key if it brings no credential."""
        key = self._settings.upstream_api_key
        if key and not any(name == "authorization" for name, _ in metadata):
            return (*metadata, ("authorization", f"Bearer {key}"))
        return metadata

    def _open(self, index: int, now_ms: int) -> UpstreamChannel:
        address, tls = self._settings.upstream[index], self._settings.upstream_tls
        options: Sequence[tuple[str, Any]] = OPTIONS
        if tls is None:
            return UpstreamChannel(grpc.aio.insecure_channel(address, options=options), index, now_ms)
        if tls.server_name:
            options = (*OPTIONS, ("grpc.ssl_target_name_override", tls.server_name))
        credentials = grpc.ssl_channel_credentials(tls.ca, tls.key, tls.certificate)
        return UpstreamChannel(grpc.aio.secure_channel(address, credentials, options=options), index, now_ms)

    async def close_idle(self) -> None:
        """Close the connections of clients that are gone."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._swept_ms < IDLE_MS // 4 and len(self._channels) < CHANNELS_MAX:
            return
        self._swept_ms = now_ms
        for peer, found in list(self._channels.items()):
            if not found.open_calls and now_ms - found.used_ms > IDLE_MS:
                del self._channels[peer]
                await found.channel.close()

    async def close(self) -> None:
        for found in self._channels.values():
            await found.channel.close()
        self._channels.clear()
