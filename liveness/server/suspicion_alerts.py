"""Alerts about calls that look like an attack: one for each kind and namespace, with the worst offender."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from liveness.security import suspicion as kinds
from liveness.v1 import cluster_pb2, fleet_pb2

_MESSAGES = {
    kinds.FAILED_SIGN_INS: "{who} failed to sign in {count} times within a minute{more}: a wrong token, or somebody who guesses.",
    kinds.FOREIGN_KEYS: "{who} tried {count} times within a minute to use worker keys of {namespace} that belong to other "
    "principals{more}: two programs may share a key by mistake.",
    kinds.SESSION_FLAPS: "The session of worker {who} of {namespace} changed {count} times within a minute{more}: a process that "
    "restarts again and again, or two that share a key.",
    kinds.FENCED_OFF: "{count} calls of former holders and sessions of {namespace} were refused within a minute{more}: look for "
    "programs that go on after they lost their lease.",
    kinds.REGISTRATIONS: "{count} workers of {namespace} registered within a minute{more}: worker keys should stay the same over "
    "restarts.",
    kinds.SHARED_TOKEN: "The token {who} was used from at least {count} addresses within an hour{more}: if that is not meant to be, "
    "revoke it with `liveness auth token revoke {who}`.",
    kinds.CLUSTER_PORT: "{who} was refused {count} times within a minute on the cluster's port{more}: only nodes and frontends "
    "should reach it.",
}


def suspicion_alerts(shares: Sequence[cluster_pb2.GetFleetShareResponse]) -> Iterator[fleet_pb2.Alert]:
    grouped: defaultdict[tuple[str, str], dict[str, int]] = defaultdict(dict)
    for suspicion in (suspicion for share in shares for suspicion in share.suspicions):
        offenders = grouped[suspicion.kind, suspicion.namespace]
        offenders[suspicion.who] = offenders.get(suspicion.who, 0) + suspicion.count
    for (kind, namespace), offenders in grouped.items():
        if kind not in _MESSAGES:
            continue  # of a newer node
        who, count = max(offenders.items(), key=lambda item: item[1])
        more = f", and {len(offenders) - 1} more like it" if len(offenders) > 1 else ""
        yield fleet_pb2.Alert(
            kind=fleet_pb2.ALERT_KIND_SUSPICIOUS,
            namespace=namespace,
            message=_MESSAGES[kind].format(
                who=who or "Somebody", count=count, namespace=namespace or "all namespaces", more=more
            ),
            count=sum(offenders.values()),
        )
