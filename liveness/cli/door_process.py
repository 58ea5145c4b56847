"""The doors that a server opens itself: paths of its HTTP server, and followers, which need a task of their own."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from typing import TYPE_CHECKING

import structlog

from liveness.cli.client import credentials_of
from liveness.config.doors import HINTS_OFF, noetl_namespace, pgai_doors
from liveness.config.durations import parse_ms
from liveness.config.settings import Settings, load_client_settings
from liveness.http.listen_address import loopback_address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from liveness.app import Server
    from liveness.clock import Clock
    from liveness.doors.noetl.settings import NoetlSettings
    from liveness.doors.pgai.follower import PgaiFollower
    from liveness.doors.pgai.settings import FollowerSettings
    from liveness.http.server import Door
    from liveness.telemetry.telemetry import NamespaceNumbers
    from liveness.v1.component_metrics_service_pb2 import MetricSample
    from liveness.v1.registry_service_pb2 import RegisterRequest

logger = structlog.get_logger("liveness.door")


class DoorUnusable(Exception):
    """The message says why a server cannot open a door."""


def noetl_settings(settings: Settings) -> NoetlSettings | None:
    """None if that door is closed. Raises DoorUnusable."""
    namespace = noetl_namespace(settings.door)
    if namespace is None:
        return None
    # Imported here: a server without this door does not need it.
    from liveness.doors.noetl.settings import NoetlSettingsError, from_environment

    try:
        return from_environment(os.environ, namespace, settings.door_noetl_replicas)
    except NoetlSettingsError as error:
        raise DoorUnusable(str(error)) from error


def http_doors(noetl: NoetlSettings | None, clock: Clock) -> list[Door]:
    if noetl is None:
        return []
    from liveness.doors.noetl.paths import noetl_door

    return [noetl_door(noetl, clock)]


def own_entries(noetl: NoetlSettings | None, url: str) -> list[RegisterRequest]:
    """As what the doors' clients expect the server to be registered."""
    if noetl is None:
        return []
    from liveness.doors.noetl.bodies import own_registration

    return [own_registration(noetl, url, socket.gethostname(), os.getpid())]


def report_own_metrics(noetl: NoetlSettings | None, server: Server) -> None:
    """Let the server report about itself what the doors' clients expect."""
    if noetl is None or not noetl.metrics_interval_ms:
        return
    from liveness.doors.noetl.bodies import POOL, SERVER, key_of
    from liveness.doors.noetl.server_metrics import server_samples

    def samples(numbers: NamespaceNumbers) -> Iterator[MetricSample]:
        return server_samples(
            active_pools=numbers.live_entries.get(POOL, 0),
            waiting_activities=numbers.available_activities,
            heartbeats=numbers.heartbeats,
            refused_heartbeats=numbers.refused_heartbeats,
        )

    component = key_of(SERVER, noetl.server_name)
    server.report_own_metrics(noetl.namespace, component, noetl.metrics_interval_ms, samples)


def own_follower_settings(settings: Settings) -> tuple[FollowerSettings, ...]:
    """The settings of the followers that a server runs itself. The address of liveness is added when the server knows it.
    Raises DoorUnusable."""
    doors = pgai_doors(settings.door)
    if not doors:
        return ()
    from liveness.doors.pgai.settings import FollowerSettings

    client = load_client_settings({}, os.environ)
    if settings.auth == "on" and not client.token_file:
        raise DoorUnusable(
            "the door pgai needs a token where every call needs a credential; set LIVENESS_TOKEN_FILE to one for workers and readers"
        )
    if settings.tls_cert_file and not client.uses_tls:
        raise DoorUnusable("the door pgai must check the certificate of its server; set LIVENESS_TLS_CA_FILE")
    hints, allowance = settings.door_pgai_hints, settings.door_pgai_restart_allowance
    return tuple(
        FollowerSettings(
            dsn=door.dsn,
            liveness=(),
            namespace=door.namespace,
            credentials=credentials_of(client),
            is_alone=settings.sqlite_path is not None,
            hint_ms=0 if hints == HINTS_OFF else parse_ms(hints) or 0,
            restart_allowance_ms=parse_ms(allowance) or 0,
        )
        for door in doors
    )


def start_own_followers(settings: tuple[FollowerSettings, ...], address: str) -> list[PgaiFollower]:
    """Start the followers of a server. They are clients of their own server, at `address`."""
    if not settings:
        return []
    # Imported here: a server without this door does not need it.
    from liveness.doors.pgai.follower import PgaiFollower
    from liveness.sdk.errors import InvalidCredentials

    own_address = (loopback_address(address),)
    try:
        followers = [PgaiFollower(replace(one, liveness=own_address)) for one in settings]
    except InvalidCredentials as error:
        raise DoorUnusable(f"the door pgai cannot open: {error}") from error
    for follower in followers:
        follower.start()
    return followers
