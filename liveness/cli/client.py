"""Call a server from the command line: options, channel, paging, and errors as sentences."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import wraps
from typing import Any, TypeVar, cast

import click
import grpc
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from liveness.cli import durations
from liveness.cli.errors import CommandError, UsageError
from liveness.cli.namespace_names import namespace_fleets, namespace_hint
from liveness.cli.output import print_note, print_table
from liveness.cli.shared_options import CONNECTION_NAMES, connection_options, json_option, namespace_option
from liveness.client_credentials import (
    TLS,
    Credentials,
    CredentialsError,
    LoadedCredentials,
    TokenFile,
    connect_failure_hint,
)
from liveness.config.settings import ClientSettings, SettingsError, load_client_settings
from liveness.rpc_details import details_from_trailer
from liveness.v1.activity_pb2_grpc import ActivityServiceStub
from liveness.v1.admin_pb2_grpc import AdminServiceStub
from liveness.v1.component_metrics_service_pb2_grpc import ComponentMetricsServiceStub
from liveness.v1.component_service_pb2_grpc import ComponentServiceStub
from liveness.v1.progress_service_pb2_grpc import ProgressServiceStub
from liveness.v1.registry_service_pb2_grpc import RegistryServiceStub
from liveness.v1.schedule_service_pb2_grpc import ScheduleServiceStub
from liveness.v1.service_pb2 import GetServerInfoRequest
from liveness.v1.service_pb2_grpc import LivenessServiceStub

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)
Item = TypeVar("Item", bound=Message)

PAGE_MAX = 1_000
ALL_NAMESPACES = "all_namespaces"
LIST_ALL_NAMESPACES = "List those of every namespace."

CHANNEL_OPTIONS = (
    # A page of a thousand workers with all their fields exceeds the default of 4 MB.
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    # A web proxy from the environment is rarely meant for gRPC, and would hide a missing server behind its own errors.
    ("grpc.enable_http_proxy", 0),
    # gRPC would give a new channel the connection of the last one, which a stopping server is about to close: a stream that
    # begins on it may hang.
    ("grpc.use_local_subchannel_pool", 1),
)


NO_CREDENTIALS = Credentials()

# After these codes the same call may succeed later.
TRANSIENT_CODES = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.ABORTED,
    }
)


# What to do when the server does not let the caller do it.
ACCESS_ADVICE = {
    grpc.StatusCode.UNAUTHENTICATED: "set LIVENESS_TOKEN_FILE, or --token-file, to the file with a valid token",
    grpc.StatusCode.PERMISSION_DENIED: "ask an admin for the grant, or set LIVENESS_TOKEN_FILE to another token's file",
}


class ServerUnavailable(CommandError):
    """No server answered, or the server cannot serve at the moment."""


@dataclass(frozen=True, slots=True)
class Client:
    address: str
    namespace: str
    timeout_s: float
    liveness: LivenessServiceStub
    admin: AdminServiceStub
    activities: ActivityServiceStub
    components: ComponentServiceStub
    metrics: ComponentMetricsServiceStub
    registry: RegistryServiceStub
    progress: ProgressServiceStub
    schedules: ScheduleServiceStub
    addresses: tuple[str, ...]
    """All given addresses; `address` is the first one that answered."""
    credentials: Credentials = field(default_factory=Credentials)
    all_namespaces: bool = False
    """Lists show the items of every namespace."""

    def call(self, method: Callable[..., Response], request: Message) -> Response:
        try:
            return method(request, timeout=self.timeout_s)
        except grpc.RpcError as error:
            raise self.to_error(error) from error

    def to_error(self, error: grpc.RpcError) -> CommandError:
        call = cast(grpc.Call, error)  # stubs raise an RpcError that is also a Call
        reason = _reason(call)
        kind = ServerUnavailable if call.code() in TRANSIENT_CODES else CommandError
        return kind(self._error_message(call, reason), reason)

    def reconnect(self) -> AbstractContextManager[Client]:
        """Connect again after a failure, perhaps to another node."""
        return connect(self.addresses, self.namespace, self.timeout_s, self.credentials)

    def list_all(
        self,
        method: Callable[..., Response],
        request: Any,
        items: Callable[[Response], Iterable[Item]],
        limit: int,
    ) -> Iterator[Item]:
        """Call `method` page by page and yield its items, up to `limit`; 0 for all. With --all-namespaces, for one namespace after
        the other."""
        left = limit
        namespaces = [fleet.namespace for fleet in namespace_fleets(self)] if self.all_namespaces else [None]
        for number, namespace in enumerate(namespaces, 1):
            if namespace is not None:
                request.namespace, request.page_token = namespace, ""
            while True:
                request.page_size = min(left, PAGE_MAX) if limit else PAGE_MAX
                response: Any = self.call(method, request)
                for item in items(response):
                    yield item
                    left -= 1
                request.page_token = response.next_page_token
                if limit and left <= 0 and (request.page_token or number < len(namespaces)):
                    print_note(f"These are the first {limit}; --limit 0 shows all.")
                    return
                if not request.page_token:
                    break

    def print_items(
        self,
        columns: Sequence[str],
        row: Callable[[Item], Sequence[object]],
        found: Iterable[Item],
        what: str,
    ) -> None:
        """Print a table, with a column for the namespace if there are several; a sentence if nothing was found. `what`: an item,
        for that sentence."""
        if self.all_namespaces:
            rows = [(getattr(item, "namespace", ""), *row(item)) for item in found]
            columns = ("namespace", *columns)
        else:
            rows = [tuple(row(item)) for item in found]
        if rows:
            print_table(columns, rows)
            return
        self.print_nothing(what)

    def print_nothing(self, what: str) -> None:
        where = "any namespace" if self.all_namespaces else f"namespace {self.namespace}"
        print_note(f"No such {what} in {where}.")
        self.print_namespace_hint()

    def in_one_listing(self) -> Client:
        """This client without --all-namespaces: its lists are those that the requests name."""
        return replace(self, all_namespaces=False)

    def each_namespace(self) -> Iterator[Client]:
        """This client, or with --all-namespaces one per namespace."""
        if not self.all_namespaces:
            yield self
            return
        for fleet in namespace_fleets(self):
            yield replace(self, namespace=fleet.namespace, all_namespaces=False)

    def print_namespace_hint(self) -> None:
        """Say which namespace was probably meant, if there is nothing in this one."""
        if not self.all_namespaces and (hint := namespace_hint(self, always=True)):
            print_note(hint)

    def _error_message(self, call: grpc.Call, reason: str) -> str:
        code, details = call.code(), call.details() or ""
        if code in ACCESS_ADVICE:
            return f"{details.rstrip('.')} ({reason or code.name}); {ACCESS_ADVICE[code]}."
        if reason:
            return f"{details.rstrip('.')} ({reason})."
        if code is grpc.StatusCode.UNAVAILABLE:
            return no_connection_message(self.address, details, uses_tls=self.credentials.tls is not None)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return (
                f"{self.address} did not answer within {durations.format_ms(round(self.timeout_s * 1_000))}"
            )
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return f"the server at {self.address} does not know this call; it is older than this command, or not liveness"
        return f"{details.rstrip('.')} ({code.name})."


def _reason(error: grpc.Call) -> str:
    """The machine-readable reason, empty if the error does not come from a liveness server."""
    return details_from_trailer(error.code(), error.trailing_metadata()).reason


def no_server_message(*addresses: str) -> str:
    *others, last = addresses
    listed = f"{', '.join(others)} or {last}" if others else last
    return f"no liveness server answers at {listed}; start one with `liveness serve`"


def no_connection_message(address: str, details: str, *, uses_tls: bool) -> str:
    """`details`: gRPC's own."""
    hint = connect_failure_hint(details, uses_tls=uses_tls)
    if not hint:
        return no_server_message(address)
    options = "" if uses_tls else " (--tls, --tls-ca-file)"
    return f"cannot connect to {address}: {hint}{options}"


def credentials_of(settings: ClientSettings) -> Credentials:
    """Refuses to send a token in plain text beyond loopback."""
    try:
        tls = (
            TLS(
                settings.tls_ca_file or None,
                settings.tls_client_cert_file or None,
                settings.tls_client_key_file or None,
                settings.tls_server_name,
            )
            if settings.uses_tls
            else None
        )
        credentials = Credentials(tls, TokenFile(settings.token_file) if settings.token_file else None)
        credentials.check_addresses(settings.addresses)
    except CredentialsError as error:
        raise UsageError(f"{error}") from None
    return credentials


def load_credentials(credentials: Credentials) -> LoadedCredentials:
    try:
        return LoadedCredentials(credentials)
    except CredentialsError as error:
        raise UsageError(f"{error}") from None


@contextmanager
def first_responding(
    addresses: tuple[str, ...], timeout_s: float, credentials: LoadedCredentials
) -> Iterator[tuple[str, grpc.Channel]]:
    """Yield the first address that answers a harmless call. So the command itself is never sent to two nodes."""
    for address in addresses:
        with credentials.open_channel(address, CHANNEL_OPTIONS) as channel:
            if len(addresses) == 1 or _is_responding(channel, timeout_s / len(addresses)):
                yield address, channel
                return
    raise ServerUnavailable(no_server_message(*addresses))


@contextmanager
def connect(
    addresses: tuple[str, ...], namespace: str, timeout_s: float, credentials: Credentials = NO_CREDENTIALS
) -> Iterator[Client]:
    with first_responding(addresses, timeout_s, load_credentials(credentials)) as (server, channel):
        yield Client(
            server,
            namespace,
            timeout_s,
            LivenessServiceStub(channel),
            AdminServiceStub(channel),
            ActivityServiceStub(channel),
            ComponentServiceStub(channel),
            ComponentMetricsServiceStub(channel),
            RegistryServiceStub(channel),
            ProgressServiceStub(channel),
            ScheduleServiceStub(channel),
            addresses,
            credentials,
        )


def _is_responding(channel: grpc.Channel, timeout_s: float) -> bool:
    try:
        LivenessServiceStub(channel).GetServerInfo(GetServerInfoRequest(), timeout=timeout_s)
    except grpc.RpcError as error:
        call = cast(grpc.Call, error)  # stubs raise an RpcError that is also a Call
        if _reason(call) not in ("", "SHUTTING_DOWN"):
            return True
        return call.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)
    return True


class Timeout(click.ParamType[float]):
    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        ms = durations.parse_ms(value)
        if not ms:
            self.fail(f"{value!r} is not a duration like 500ms, 10s or 1m.", param, ctx)
        return ms / 1_000


class Milliseconds(click.ParamType[int]):
    name = "DURATION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        ms = durations.parse_ms(value)
        if ms is None:
            self.fail(f"{value!r} is not {durations.DURATION_RULE}.", param, ctx)
        return ms


class Moment(click.ParamType[Timestamp]):
    """A time with its zone; without one, in the zone of this machine."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Timestamp:
        if isinstance(value, Timestamp):
            return value
        try:
            moment = datetime.fromisoformat(value).astimezone(UTC)
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is not a time such as 2026-12-24T18:00:00+01:00.", param, ctx)
        stamp = Timestamp()
        stamp.FromDatetime(moment)
        return stamp


def client_command(
    *,
    namespace: bool = True,
    all_namespaces: str = "",
    timeout: str = "10s",
    timeout_help: str = "How long to wait for the server.",
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options that client commands share, and pass the command a connected `Client`.

    `all_namespaces`: the help text of --all-namespaces, for commands that have it."""

    namespaced = namespace

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(*, timeout: float, namespace: str | None = None, **rest: Any) -> None:
            all_namespaces = bool(rest.pop(ALL_NAMESPACES, False))
            flags = {name: rest.pop(name) for name in CONNECTION_NAMES}
            check_utf8(*flags.values(), namespace, *rest.values())
            try:
                settings = load_client_settings({**flags, "namespace": namespace}, os.environ)
            except SettingsError as error:
                raise UsageError(str(error)) from error
            credentials = credentials_of(settings)
            with connect(settings.addresses, settings.namespace, timeout, credentials) as client:
                client = replace(client, all_namespaces=all_namespaces)
                try:
                    command(client, **rest)
                except CommandError as error:
                    if (
                        namespaced
                        and error.reason.endswith("_NOT_FOUND")
                        and (hint := namespace_hint(client))
                    ):
                        raise CommandError(f"{error.message} {hint}", error.reason) from error
                    raise

        options: list[Callable[..., Any]] = [
            click.option(
                "--timeout",
                type=Timeout(),
                default=timeout,
                show_default=True,
                help=timeout_help,
            ),
            json_option,
            connection_options,
        ]
        if namespace:
            options.append(namespace_option)
        if all_namespaces:
            options.append(
                click.option("--all-namespaces", "-A", ALL_NAMESPACES, is_flag=True, help=all_namespaces)
            )
        decorated: Callable[..., None] = run
        for option in options:
            decorated = option(decorated)
        return decorated

    return decorate


def check_utf8(*values: object) -> None:
    """Refuse arguments that are not UTF-8, because protobuf strings cannot carry them."""
    for value in values:
        if isinstance(value, tuple):
            check_utf8(*value)
        elif isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise UsageError(f"{value!r} is not UTF-8, which names and texts must be") from error


def limit_option(command: Callable[..., None]) -> Callable[..., None]:
    return click.option(
        "--limit",
        type=click.IntRange(min=0),
        default=100,
        show_default=True,
        help="The maximum number of items; 0 shows all.",
    )(command)


def confirm_option(command: Callable[..., None]) -> Callable[..., None]:
    return click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")(command)


def confirm(question: str) -> None:
    """Ask on stderr. Any answer but yes ends the command."""
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        print_note("")
        agreed = False
    if not agreed:
        raise CommandError("not confirmed, so nothing was changed; --yes skips the question")
