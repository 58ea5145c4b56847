"""Whether a principal may make a call: `authorize`, by the `(liveness.v1.access)` option of the method."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

from google.protobuf.descriptor import MethodDescriptor

from liveness.domain.errors import LivenessError, PermissionDenied
from liveness.security.grants import Role
from liveness.security.principal import Principal, current_caller
from liveness.v1 import access_pb2


class Scope(IntEnum):
    """The numbers are those of `liveness.v1.Scope`, which says what each means."""

    NAMESPACE = 1
    WORKER = 2
    SERVER = 3
    LOADED = 4
    CALLER = 5


_NAMESPACE, _WORKER = Scope.NAMESPACE, Scope.WORKER


class AccessRule(NamedTuple):
    roles: frozenset[Role]
    """One of them, or a role that includes it, is needed."""
    scope: Scope
    worker_key: Callable[[Any], str] | None = None
    """The worker key of a request whose scope is WORKER; None for a batch and for a stream, whose items are checked one by
    one."""
    is_batch: bool = False


class NoAccessRule(Exception):
    """A method declares no access rule. Nobody could call it."""


def access_rule(method: MethodDescriptor) -> AccessRule:
    option = method.GetOptions().Extensions[access_pb2.access]
    if not option.role or not option.scope:
        raise NoAccessRule(f"{method.full_name} declares no (liveness.v1.access)")
    roles, scope = frozenset(map(Role, option.role)), Scope(option.scope)
    if scope is not Scope.WORKER or method.client_streaming:
        return AccessRule(roles, scope)
    fields = method.input_type.fields_by_name
    if "worker_instance_key" in fields:
        return AccessRule(roles, scope, lambda request: request.worker_instance_key)
    if "heartbeat" in fields:
        return AccessRule(roles, scope, lambda request: request.heartbeat.worker_instance_key)
    if "heartbeats" in fields:
        return AccessRule(roles, scope, is_batch=True)
    raise NoAccessRule(f"{method.full_name} has the scope WORKER, but its request names no worker")


def authorize(principal: Principal, rule: AccessRule, request: Any) -> None:
    """Refuse a call that the principal may not make. Of a batch, `denied_items` names the items that are refused; a batch is
    refused as a whole if its namespace is."""
    scope = rule.scope
    if scope is _WORKER or scope is _NAMESPACE:
        # Without calls of other functions for a caller that has the role in the whole namespace: this runs for every heartbeat.
        prefixes = principal.key_prefixes(rule.roles, request.namespace)
        if "" in prefixes:
            return
        if scope is _NAMESPACE or not prefixes:
            raise denied(principal, rule, request.namespace)
        if rule.worker_key is not None:
            authorize_worker(principal, rule, request.namespace, rule.worker_key(request))
    elif scope is Scope.SERVER:
        if "" not in principal.key_prefixes(rule.roles, ""):
            raise denied(principal, rule, "")
    elif scope is Scope.LOADED:
        # Whether it exists is not told to those who have the role nowhere, either.
        if not any(grant.includes(role) for grant in principal.grants for role in rule.roles):
            raise denied(principal, rule, "any namespace")
    elif (namespace := getattr(request, "namespace", "")) and not principal.has_any_role(namespace):
        raise denied(principal, rule, namespace)


def authorize_worker(principal: Principal, rule: AccessRule, namespace: str, instance_key: str) -> None:
    """Refuse a call about one worker, or about all of a namespace if the key is empty."""
    prefixes = principal.key_prefixes(rule.roles, namespace)
    if "" in prefixes:
        return
    if not instance_key or not instance_key.startswith(prefixes):
        raise denied(principal, rule, namespace, instance_key)


def denied_items(principal: Principal, rule: AccessRule, request: Any) -> dict[int, PermissionDenied]:
    """The items of a batch that are refused, by their position."""
    prefixes = principal.key_prefixes(rule.roles, request.namespace)
    if "" in prefixes:
        return {}
    keys = (beat.worker_instance_key for beat in request.heartbeats)
    return {
        position: denied(principal, rule, request.namespace, key)
        for position, key in enumerate(keys)
        if not key or not key.startswith(prefixes)
    }


def require_loaded(namespace: str, roles: frozenset[Role], not_found: LivenessError) -> None:
    """For methods of the scope LOADED: answer `not_found` to a caller that has none of the roles in the namespace of what
    was loaded."""
    caller = current_caller.get()
    if caller is not None and "" not in caller.principal.key_prefixes(roles, namespace):
        raise not_found


def denied(
    principal: Principal, rule: AccessRule, namespace: str, instance_key: str = ""
) -> PermissionDenied:
    """The refusal repeats what the request says, and tells nothing about what exists."""
    roles = " or ".join(role.name.lower() for role in sorted(rule.roles))
    where = namespace or "all namespaces"
    return PermissionDenied(
        principal=principal.name, role=roles, where=f"{where} for {instance_key}" if instance_key else where
    )
