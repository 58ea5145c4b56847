"""The gRPC options of every listener: what one connection may send and keep open.

gRPC enforces these limits before any of our code sees a byte.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

MESSAGE_BYTES_MAX = 6_500 * 1024
"""The SDK fills a batch of heartbeats up to 3 MiB, and one more heartbeat has at most 3.2 MiB."""
CONCURRENT_STREAMS_MAX = 1_000
"""Calls that are open on one connection at the same time, streams that the client has reset but gRPC has not yet
forgotten included. So one connection cannot fill the queue of calls that wait for the event loop."""
PEER_STREAMS_MAX = 100_000
"""The same for a node or a frontend, whose one connection carries the calls of all its clients, waiting polls included."""
PENDING_CALLS_MAX = 10_000
"""Calls of all connections that gRPC has read and the event loop has not taken yet. gRPC cancels further ones, whoever
they are from. Its default of 1,000 to 3,000 is what a single connection may have open."""
CONNECTIONS_MAX = 100_000
"""Of the native edge, which closes further ones; gRPC takes as many as there may be open files."""
METADATA_BYTES_MAX = 16 * 1024
PEER_METADATA_BYTES_MAX = 128 * 1024
"""The same for a node or a frontend, which names the principal of a forwarded call with all its grants: 100 of 600 bytes."""
HANDSHAKE_TIMEOUT_MS = 10_000
"""A connection on which nothing arrives is closed after this time."""
IDLE_MS_MAX = 300_000
"""A connection without open calls is closed after this time. Clients connect again when they need to."""
PING_INTERVAL_MS_MIN = 5_000
"""A client that sends pings more often than this, without data, is disconnected. The SDK waits 10 s."""
KEEPALIVE_MS = 60_000
KEEPALIVE_TIMEOUT_MS = 20_000

_IDENTITY_ONLY = 1 << 0
"""Compressed requests are refused with UNIMPLEMENTED before they are unpacked: a few KiB can hide many MiB."""


def peer_options() -> list[tuple[str, int]]:
    """Those of the cluster's listener."""
    return server_options(concurrent_streams_max=PEER_STREAMS_MAX, metadata_bytes_max=PEER_METADATA_BYTES_MAX)


def server_options(
    *, concurrent_streams_max: int = CONCURRENT_STREAMS_MAX, metadata_bytes_max: int = METADATA_BYTES_MAX
) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
        ("grpc.compression_enabled_algorithms_bitset", _IDENTITY_ONLY),
        ("grpc.max_concurrent_streams", concurrent_streams_max),
        # Of both of these pairs, gRPC refuses at random between the two limits, so both are the same.
        ("grpc.server.max_pending_requests", PENDING_CALLS_MAX),
        ("grpc.server.max_pending_requests_hard_limit", PENDING_CALLS_MAX),
        ("grpc.max_metadata_size", metadata_bytes_max),
        ("grpc.absolute_max_metadata_size", metadata_bytes_max),
        ("grpc.server_handshake_timeout_ms", HANDSHAKE_TIMEOUT_MS),
        ("grpc.max_connection_idle_ms", IDLE_MS_MAX),
        ("grpc.http2.min_ping_interval_without_data_ms", PING_INTERVAL_MS_MIN),
        # A peer that vanished while calls were open does not close its connections.
        ("grpc.keepalive_time_ms", KEEPALIVE_MS),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ]


def edge_limits(options: Mapping[str, Any]) -> dict[str, int]:
    """The same limits for the native edge, as it names them. `options`: those of gRPC."""
    return {
        "connections_max": CONNECTIONS_MAX,
        "streams_max": options.get("grpc.max_concurrent_streams", CONCURRENT_STREAMS_MAX),
        "header_bytes_max": options.get("grpc.max_metadata_size", METADATA_BYTES_MAX),
        "waiting_calls_max": PENDING_CALLS_MAX,
        "handshake_timeout_ms": HANDSHAKE_TIMEOUT_MS,
        "idle_ms_max": IDLE_MS_MAX,
        "ping_interval_ms_min": PING_INTERVAL_MS_MIN,
        "keepalive_ms": KEEPALIVE_MS,
        "keepalive_timeout_ms": KEEPALIVE_TIMEOUT_MS,
    }
