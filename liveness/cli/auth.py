"""`liveness auth`: the first admin token, further tokens, and what a caller may do."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import click

from liveness.cli.client import Client, Milliseconds, client_command, confirm, confirm_option
from liveness.cli.errors import CommandError, UsageError
from liveness.cli.output import (
    format_age,
    print_fields,
    print_json,
    print_json_array,
    print_note,
    print_table,
    to_json,
)
from liveness.cli.serve import settings_from_flags
from liveness.cli.server_parts import needs_server_parts
from liveness.cli.shared_options import SharedOptionsGroup
from liveness.config.settings import Settings
from liveness.v1 import access_pb2
from liveness.v1.token_pb2 import (
    CanIRequest,
    CreateTokenRequest,
    ListTokensRequest,
    RevokeTokenRequest,
    Token,
    WhoAmIRequest,
)

ROLES = ("worker", "producer", "reader", "operator", "admin")
NOT_ALLOWED = 1


@click.group(cls=SharedOptionsGroup)
def auth() -> None:
    """Create, list and revoke tokens; show what a caller may do."""


@auth.command()
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--db", metavar="URL", help="[default: the one `liveness serve` would use]")
@click.option("--shards", metavar="N", help="If the database is new.  [default: 64]")
@click.option("--config", metavar="FILE.toml", help="Settings in a file.  [default: LIVENESS_CONFIG]")
@click.option("--force", is_flag=True, help="Create another one although there is an admin token.")
@needs_server_parts
def init(*, file: Path, db: str | None, shards: str | None, config: str | None, force: bool) -> None:
    """Write the first admin token to FILE, which only its owner can read.

    The command writes to the database itself. A server on SQLite must be stopped meanwhile.

    \b
    Examples:
      liveness auth init admin-token
      liveness auth init admin-token --db postgresql://liveness:secret@db.example/liveness
      LIVENESS_TOKEN_FILE=admin-token liveness auth whoami
    """
    settings = settings_from_flags({"db": db, "shards": shards}, config)
    # Created first: a token that cannot be written down must not exist.
    try:
        target = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise UsageError(f"{file} exists already; name a new file") from error
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {error.strerror}") from error
    is_written = False
    try:
        token = _create_first_token(settings, force)
        os.write(target, f"{token}\n".encode())
        os.fsync(target)
        is_written = True
    finally:
        os.close(target)
        if not is_written:
            file.unlink()
    print_note(f"The admin token is in {file}. Start the server with --auth on.")


def _create_first_token(settings: Settings, force: bool) -> str:
    from liveness.app import open_store
    from liveness.clock import SystemClock
    from liveness.security.first_token import create_first_token
    from liveness.store.errors import StoreError, StoreUnusable
    from liveness.store.tokens import AdminTokenExists

    async def create() -> str:
        store = await open_store(settings)
        try:
            return (await create_first_token(store, SystemClock(), force=force)).text
        finally:
            await store.close()

    try:
        return asyncio.run(create())
    except AdminTokenExists as error:
        raise CommandError("there is an admin token already; --force creates another one") from error
    except StoreUnusable as error:
        raise UsageError(str(error)) from error
    except StoreError as error:
        raise CommandError(f"the token cannot be stored: {error}") from error


@auth.group(cls=SharedOptionsGroup)
def token() -> None:
    """Create, list and revoke tokens."""


@token.command()
@click.argument("principal")
@click.argument("grants", nargs=-1, required=True, metavar="GRANT...")
@click.option(
    "--lifetime", type=Milliseconds(), help="How long it is valid, at most 366d.  [default: 90 days]"
)
@client_command(namespace=False)
def create(
    client: Client, *, principal: str, grants: tuple[str, ...], lifetime: int | None, as_json: bool
) -> None:
    """Create a token for PRINCIPAL, and print it once.

    A GRANT is ROLE:NAMESPACE or ROLE:NAMESPACE:KEY_PREFIX. ROLE is worker, producer, reader, operator or admin; * stands for
    all namespaces. A principal has two live tokens at most, so that one can replace the other.

    \b
    Examples:
      liveness auth token create render-farm worker:shop > token && chmod 600 token
      liveness auth token create oncall 'operator:*' --lifetime 30d
      liveness auth token create web producer:shop reader:shop --json | jq -r .secret
    """
    request = CreateTokenRequest(principal=principal, grants=grants)
    if lifetime is not None:
        request.lifetime.FromMilliseconds(lifetime)
    created = client.call(client.admin.CreateToken, request)
    if as_json:
        print_json(to_json(created))
        return
    click.echo(created.secret)
    print_note(f"Token {created.token.token_id} of {principal}. It is not shown again.")


@token.command("list")
@click.option("--principal", metavar="NAME", default="", help="Only tokens of this principal.")
@client_command(namespace=False)
def list_(client: Client, *, principal: str, as_json: bool) -> None:
    """List the tokens, without their secrets.

    \b
    Examples:
      liveness auth token list
      liveness auth token list --principal render-farm --json
    """
    found = client.call(client.admin.ListTokens, ListTokensRequest(principal=principal)).tokens
    if as_json:
        print_json_array(found)
        return
    print_table(("token", "principal", "grants", "created", "by", "expires", "revoked"), map(_row, found))


def _row(token: Token) -> tuple[object, ...]:
    return (
        token.token_id,
        token.principal,
        " ".join(token.grants),
        format_age(token, "create_time"),
        token.created_by,
        token.expire_time.ToDatetime().date(),
        format_age(token, "revoke_time") if token.HasField("revoke_time") else "",
    )


@token.command()
@click.argument("token_id", metavar="TOKEN_ID")
@confirm_option
@client_command(namespace=False)
def revoke(client: Client, *, token_id: str, yes: bool, as_json: bool) -> None:
    """Revoke a token. All nodes refuse it within a second, and end its streams.

    \b
    Examples:
      liveness auth token revoke k3f9c2m8x4ab
    """
    if not yes:
        confirm(f"Revoke the token {token_id}?")
    revoked = client.call(client.admin.RevokeToken, RevokeTokenRequest(token_id=token_id)).token
    if as_json:
        print_json(to_json(revoked))
        return
    print_note(f"Token {revoked.token_id} of {revoked.principal} is revoked.")


@auth.command()
@client_command(namespace=False)
def whoami(client: Client, *, as_json: bool) -> None:
    """Show whom the server takes you for.

    \b
    Examples:
      LIVENESS_TOKEN_FILE=token liveness auth whoami
    """
    me = client.call(client.admin.WhoAmI, WhoAmIRequest())
    if as_json:
        print_json(to_json(me))
        return
    if not me.authenticated:
        print_note("The server asks nobody who calls: everybody may do everything.")
        return
    print_fields(
        [
            ("principal", me.principal),
            ("grants", " ".join(me.grants)),
            ("credential", f"{me.credential} {me.credential_id}".strip()),
            ("expires", me.expire_time.ToDatetime().isoformat(" ") if me.HasField("expire_time") else ""),
        ]
    )


@auth.command("can-i")
@click.argument("role", type=click.Choice(ROLES))
@click.argument("target", metavar="NAMESPACE")
@click.option("--key", metavar="KEY", default="", help="A worker key, if the grant is limited to some.")
@client_command(namespace=False)
def can_i(client: Client, *, role: str, target: str, key: str, as_json: bool) -> None:
    """Say whether you have ROLE in NAMESPACE; * stands for all. The exit code is 0 for yes and 1 for no.

    \b
    Examples:
      liveness auth can-i operator shop
      liveness auth can-i worker shop --key render-1
    """
    request = CanIRequest(
        role=access_pb2.Role.Value(f"ROLE_{role.upper()}"),
        target_namespace=target,
        worker_instance_key=key,
    )
    answer = client.call(client.admin.CanI, request)
    if as_json:
        print_json(to_json(answer))
    else:
        click.echo("yes" if answer.allowed else "no")
    if not answer.allowed:
        raise SystemExit(NOT_ALLOWED)
