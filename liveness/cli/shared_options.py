"""The options that all client commands share. They are accepted before and after the subcommand.

A group passes the shared options that it was given on to its subcommand, in front of the subcommand's own arguments:
`liveness --address x workers list` runs as `liveness workers list --address x`. Click takes the last value of an option,
so the innermost one wins. A command that has no such option refuses it instead of ignoring it.

This module must not import gRPC: every call of `liveness`, even for help, loads it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import click

from liveness.cli.errors import UsageError

CommandFunction: TypeAlias = Callable[..., None]

ADDRESS: dict[str, Any] = {
    "param_decls": ("--address",),
    "metavar": "HOST:PORT[,…]",
    "help": "The server; of several nodes, the first that answers.  [default: LIVENESS_ADDRESS or 127.0.0.1:7400]",
}
NAMESPACE: dict[str, Any] = {
    "param_decls": ("--namespace", "-n"),
    "metavar": "NAME",
    "help": "[default: LIVENESS_NAMESPACE or default]",
}
JSON: dict[str, Any] = {
    "param_decls": ("--json", "as_json"),
    "is_flag": True,
    "help": "Print JSON, for programs.",
}
TLS: dict[str, Any] = {
    "param_decls": ("--tls",),
    "is_flag": True,
    "default": None,
    "help": "Connect with TLS.  [default: LIVENESS_TLS, or on if a file for TLS is given]",
}
TLS_CA_FILE: dict[str, Any] = {
    "param_decls": ("--tls-ca-file",),
    "metavar": "FILE",
    "help": "Who signs the server's certificate.  [default: LIVENESS_TLS_CA_FILE or this system's authorities]",
}
TLS_CLIENT_CERT_FILE: dict[str, Any] = {
    "param_decls": ("--tls-client-cert-file",),
    "metavar": "FILE",
    "help": "Your own certificate.  [default: LIVENESS_TLS_CLIENT_CERT_FILE]",
}
TLS_CLIENT_KEY_FILE: dict[str, Any] = {
    "param_decls": ("--tls-client-key-file",),
    "metavar": "FILE",
    "help": "Its key.  [default: LIVENESS_TLS_CLIENT_KEY_FILE]",
}
TOKEN_FILE: dict[str, Any] = {
    "param_decls": ("--token-file",),
    "metavar": "FILE",
    "help": "The file with your token.  [default: LIVENESS_TOKEN_FILE]",
}
CONNECTION = (TOKEN_FILE, TLS_CLIENT_KEY_FILE, TLS_CLIENT_CERT_FILE, TLS_CA_FILE, TLS, ADDRESS)
"""How to reach the server, and who calls. Options are shown in the reverse order."""
CONNECTION_NAMES = (
    "address",
    "tls",
    "tls_ca_file",
    "tls_client_cert_file",
    "tls_client_key_file",
    "token_file",
)


def connection_options(command: CommandFunction) -> CommandFunction:
    for option in CONNECTION:
        command = _option(command, **option)
    return command


def namespace_option(command: CommandFunction) -> CommandFunction:
    return _option(command, **NAMESPACE)


def json_option(command: CommandFunction) -> CommandFunction:
    return _option(command, **JSON)


def _option(command: CommandFunction, *, param_decls: tuple[str, ...], **attributes: Any) -> CommandFunction:
    return click.option(*param_decls, **attributes)(command)


class SharedOptionsGroup(click.Group):
    """A group that accepts the shared options and passes them on to its subcommand."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params += [click.Option(**shared) for shared in (*reversed(CONNECTION), NAMESPACE, JSON)]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        # Taken out of `params`, so that the group's own function need not accept them.
        given = {name: ctx.params.pop(name, None) for name in (*CONNECTION_NAMES, "namespace", "as_json")}
        ctx.obj = {}
        for name, value in given.items():
            option = "--json" if name == "as_json" else "--" + name.replace("_", "-")
            if value is True:
                ctx.obj[option] = option
            elif value:
                ctx.obj[option] = f"{option}={value}"
            elif value == "":
                ctx.obj[option] = f"{option}="
        return rest

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if command is None:
            return name, command, rest
        accepted = {option for parameter in command.params for option in parameter.opts}
        for option in ctx.obj:
            if option not in accepted:
                raise UsageError(f"`{ctx.command_path} {name}` has no option {option}")
        return name, command, [*ctx.obj.values(), *rest]
