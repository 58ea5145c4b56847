"""Rules that map claims to grants, names in certificates, and what is not shown."""

from __future__ import annotations

import json
from typing import Any

import pytest

from liveness.clock import ManualClock
from liveness.domain.errors import SessionSuperseded, Unauthenticated
from liveness.security import authentication
from liveness.security.authentication import Authenticator, authorization_of, certificate_name
from liveness.security.grant_rules import grants_for, parse_grant_rule
from liveness.security.principal import Caller, Principal, current_caller
from liveness.security.redaction import redact_error, redact_json, short_hash
from liveness.security.token_table import TokenTable
from tests.certificates import Authority


def rules(*texts: str) -> list[Any]:
    found = [parse_grant_rule(text) for text in texts]
    assert None not in found
    return found


@pytest.mark.parametrize(
    ("rule", "claims", "granted"),
    [
        ("sub=a=>worker:shop", {"sub": "a"}, True),
        ("sub=a=>worker:shop", {"sub": "ab"}, False),
        ("sub=a*=>worker:shop", {"sub": "ab"}, True),
        ("sub=*=>worker:shop", {"sub": ""}, True),
        ("sub=a.c=>worker:shop", {"sub": "abc"}, False),
        ("sub=ns:*:x=>worker:shop", {"sub": "ns:a:x"}, True),
        ("sub=a=>worker:shop", {"sub": "a\nb"}, False),
        ("groups=oncall=>worker:shop", {"groups": ["dev", "oncall"]}, True),
        ("groups=oncall=>worker:shop", {"groups": "oncall"}, True),
        ("groups=oncall=>worker:shop", {"groups": {"oncall": 1}}, False),
        ("groups=oncall=>worker:shop", {}, False),
        ("level=5=>worker:shop", {"level": 5}, False),
    ],
)
def test_a_rule_grants_if_the_claim_matches(rule: str, claims: dict[str, Any], granted: bool) -> None:
    assert [str(grant) for grant in grants_for(rules(rule), claims)] == ["worker:shop"] * granted


@pytest.mark.parametrize(
    "text", ["", "sub", "sub=a", "sub=a=>", "=a=>worker:shop", "sub==>worker:shop", "sub=a=>node:*"]
)
def test_anything_else_is_no_rule(text: str) -> None:
    assert parse_grant_rule(text) is None


ISSUED = Authority().issue_client()


@pytest.mark.parametrize(
    ("context", "name"),
    [
        ({}, None),
        ({"x509_common_name": [b"worker-1"]}, "worker-1"),
        ({"x509_common_name": [b"cn"], "x509_subject_alternative_name": [b"host.example"]}, "cn"),
        (
            {"x509_common_name": [b"cn"], "x509_subject_alternative_name": [b"h", b"spiffe://x/w"]},
            "spiffe://x/w",
        ),
        ({"x509_common_name": [b"\xff"]}, None),
        ({"x509_common_name": [b"a\nb"]}, None),
    ],
)
def test_the_name_in_a_client_certificate(context: dict[str, list[bytes]], name: str | None) -> None:
    assert certificate_name(context) == name


class CertificateCall:
    """What gRPC says about a call over TLS whose client showed a certificate with this name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def invocation_metadata(self) -> Any:
        return ()

    def auth_context(self) -> dict[str, list[bytes]]:
        return {"x509_common_name": [self._name.encode()], "x509_pem_cert": [ISSUED.cert_pem]}


async def test_each_certificate_has_its_own_principal_and_grants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authentication, "CACHE_ENTRIES_MAX", 2)
    store: Any = None  # certificates are not in it
    clock = ManualClock()
    rules_ = rules("cert=ann=>worker:shop", "cert=bob*=>reader:*")
    node = Authenticator(clock, TokenTable(store, clock), None, rules_)
    for _ in range(2):
        for name, granted in (
            ("ann", "worker:shop"),
            ("bob", "reader:*"),
            ("bobby", "reader:*"),
            ("eve", ""),
        ):
            principal = (await node.identify(CertificateCall(name))).principal
            assert (principal.name, " ".join(map(str, principal.grants))) == (f"cert:{name}", granted)
    assert len(node._certificate_callers) <= 2


def test_the_authorization_header_is_found_and_two_are_refused() -> None:
    assert authorization_of(None) is None
    assert authorization_of([("x", "y"), ("authorization", "Bearer a")]) == "Bearer a"
    with pytest.raises(Unauthenticated):
        authorization_of([("authorization", "Bearer a"), ("authorization", "Bearer b")])


def test_events_are_shown_without_sessions_and_to_readers_without_payloads() -> None:
    event = json.dumps({"session_id": "s", "input": "x", "bindings": [{"token": "t", "id": "a"}], "n": 1})
    assert json.loads(redact_json(event, shows_payloads=False, shows_output=False)) == {
        "session_id": short_hash("s"),
        "bindings": [{"id": "a"}],
        "n": 1,
    }
    assert json.loads(redact_json(event, shows_payloads=True, shows_output=True))["input"] == "x"
    assert short_hash("") == ""


def test_refusals_show_sessions_as_they_are_only_where_nobody_is_asked() -> None:
    error = SessionSuperseded(session_id="secret", worker="w")
    assert redact_error(error) is error
    token = current_caller.set(Caller(Principal("p", ())))
    try:
        assert "secret" not in str(redact_error(error))
        assert short_hash("secret") in str(redact_error(error))
    finally:
        current_caller.reset(token)
