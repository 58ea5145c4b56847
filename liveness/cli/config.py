"""`liveness config`: show and change the settings of namespaces while the server runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import click
from google.protobuf.descriptor import FieldDescriptor

from liveness.cli import durations
from liveness.cli.client import Client, client_command
from liveness.cli.errors import UsageError
from liveness.cli.output import print_json, print_table, to_json
from liveness.cli.shared_options import SharedOptionsGroup
from liveness.config.settings import suggestion
from liveness.v1.admin_pb2 import GetConfigRequest, NamespaceConfig, UpdateConfigRequest

KEYS: Mapping[str, FieldDescriptor] = dict(NamespaceConfig.DESCRIPTOR.fields_by_name)
DEFAULT = ""
"""The server's name for the default that all namespaces inherit."""
INT64_MAX = 2**63 - 1


@click.group(cls=SharedOptionsGroup)
def config() -> None:
    """Show and change the settings of namespaces.

    \b
    Examples:
      liveness config get -n billing
      liveness config set -n billing cleanup_delay=5m max_workers=500
      liveness config set --default event_retention=90d
    """


default_option = click.option(
    "--default", "of_default", is_flag=True, help="The default that all namespaces inherit."
)


@config.command()
@click.argument("key", required=False)
@default_option
@client_command()
def get(client: Client, *, key: str | None, of_default: bool, as_json: bool) -> None:
    """Show the effective settings and their source: the namespace (here), the default, or built in.

    \b
    Examples:
      liveness config get
      liveness config get cleanup_delay -n billing
      liveness config get --default
    """
    name = None if key is None else _check_key(key)
    namespace = _namespace(client, of_default=of_default)
    response = client.call(client.admin.GetConfig, GetConfigRequest(namespace=namespace))
    _show(client, namespace, response.effective, response.overrides, name, as_json=as_json)


@config.command("set")
@click.argument("assignments", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--unset", "unset", metavar="KEY", multiple=True, help="Inherit this again; may be repeated.")
@default_option
@client_command()
def set_(
    client: Client, *, assignments: tuple[str, ...], unset: tuple[str, ...], of_default: bool, as_json: bool
) -> None:
    """Change settings, at once and without a restart. Leases granted before keep their terms.

    Durations are written 250ms, 30s, 5m, 1h or 30d; 0 means for ever or no limit where that is possible.

    \b
    Examples:
      liveness config set -n billing cleanup_delay=5m max_workers=500
      liveness config set -n billing --unset cleanup_delay
      liveness config set --default event_retention=0
    """
    if not assignments and not unset:
        raise UsageError("give at least one KEY=VALUE or --unset KEY")
    changes = _parse_assignments(assignments)
    unset_keys = [_check_key(key) for key in unset]
    for key in unset_keys:
        if changes.HasField(key):  # type: ignore[arg-type]  # a field name, checked by _check_key
            raise UsageError(f"{key} cannot be set and unset at once")
    namespace = _namespace(client, of_default=of_default)
    response = client.call(
        client.admin.UpdateConfig, UpdateConfigRequest(namespace=namespace, set=changes, unset=unset_keys)
    )
    _show(client, namespace, response.effective, response.overrides, None, as_json=as_json)


def _namespace(client: Client, *, of_default: bool) -> str:
    if not of_default:
        return client.namespace
    source = click.get_current_context().get_parameter_source("namespace")
    if source is click.core.ParameterSource.COMMANDLINE:
        raise UsageError("--default is for all namespaces and cannot be combined with --namespace")
    return DEFAULT


def _check_key(key: str) -> str:
    name = key.replace("-", "_")
    if name not in KEYS:
        raise UsageError(f"there is no setting {key}; {suggestion(name, KEYS)}")
    return name


def _parse_assignments(assignments: tuple[str, ...]) -> NamespaceConfig:
    changes = NamespaceConfig()
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        name = _check_key(key)
        if not equals:
            raise UsageError(f"{key} has no value; write {key}=VALUE, or --unset {key} to inherit it again")
        if changes.HasField(name):  # type: ignore[arg-type]  # checked by _check_key
            raise UsageError(f"{name} is given twice")
        _assign_value(changes, name, text)
    return changes


def _assign_value(changes: NamespaceConfig, name: str, text: str) -> None:
    kind = KEYS[name].type
    if kind == FieldDescriptor.TYPE_MESSAGE:
        ms = durations.parse_ms(text)
        if ms is None:
            raise UsageError(f"{name} is {text!r}, but must be {durations.DURATION_RULE}")
        getattr(changes, name).CopyFrom(durations.from_ms(ms))
    elif kind == FieldDescriptor.TYPE_INT64:
        if not re.fullmatch(r"[0-9]{1,19}", text) or int(text) > INT64_MAX:
            raise UsageError(f"{name} is {text!r}, but must be a whole number, 0 or more")
        setattr(changes, name, int(text))
    else:
        if not re.fullmatch(r"[0-9]{1,18}(\.[0-9]{1,18})?", text):
            raise UsageError(f"{name} is {text!r}, but must be a number, 0 or more")
        setattr(changes, name, float(text))


def _show(
    client: Client,
    namespace: str,
    effective: NamespaceConfig,
    overrides: NamespaceConfig,
    only_key: str | None,
    *,
    as_json: bool,
) -> None:
    if namespace == DEFAULT:
        default = NamespaceConfig()
    else:
        default = client.call(client.admin.GetConfig, GetConfigRequest(namespace=DEFAULT)).overrides
    names = list(KEYS) if only_key is None else [only_key]
    sources = {name: _source(name, overrides, default) for name in names}
    if not as_json:
        print_table(
            ("setting", "value", "set"),
            [(name, _value_text(effective, name), sources[name]) for name in names],
        )
        return
    values = to_json(effective)
    if only_key is None:
        print_json(
            {
                "namespace": namespace,
                "effective": values,
                "overrides": _set_fields(overrides),
                "sources": sources,
            }
        )
    else:
        print_json({"key": only_key, "value": values[only_key], "source": sources[only_key]})


def _source(name: str, overrides: Any, default: Any) -> str:
    if overrides.HasField(name):
        return "here"
    return "default" if default.HasField(name) else "built-in"


def _set_fields(overrides: Any) -> dict[str, Any]:
    return {name: value for name, value in to_json(overrides).items() if overrides.HasField(name)}


def _value_text(values: Any, name: str) -> str:
    value = getattr(values, name)
    if KEYS[name].type == FieldDescriptor.TYPE_MESSAGE:
        return durations.format_ms(durations.to_ms(value))
    return f"{value:.15g}" if isinstance(value, float) else str(value)
