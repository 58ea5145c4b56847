"""Options that `liveness serve` and `liveness frontend` share: TLS on the cluster's port."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def cluster_tls_options(command: F) -> F:
    options = (
        click.option("--cluster-cert-file", metavar="FILE", help="The certificate for TLS between nodes."),
        click.option("--cluster-key-file", metavar="FILE", help="The key of that certificate."),
        click.option(
            "--cluster-ca-file",
            metavar="FILE",
            help="The authority that signed all nodes' and frontends' certificates.",
        ),
        click.option(
            "--insecure/--no-insecure",
            default=None,
            help="Allow listeners beyond loopback without TLS and authentication.  [default: off]",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command
