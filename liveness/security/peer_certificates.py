"""What certificates of the cluster's own authority say about a peer, in a URI among their alternative names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

NODE_URI = "liveness://node"
FRONTEND_URI = "liveness://frontend"


def peer_uris(auth_context: Mapping[str, Iterable[bytes]]) -> set[str]:
    """The URIs in the peer's certificate. `auth_context`: what gRPC says about the connection of a call."""
    return {uri.decode(errors="replace") for uri in auth_context.get("peer_uri", ())}
