"""Rules that map the claims of a JWT, or the name in a client certificate, to grants.

sub=system:serviceaccount:shop:*=>worker:shop
groups=oncall=>operator:*
cert=spiffe://example.org/worker/*=>worker:shop
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from liveness.security.grants import EXPECTED as GRANT_EXPECTED
from liveness.security.grants import Grant, parse_grant

CERTIFICATE_CLAIM = "cert"
EXPECTED = f"CLAIM=PATTERN=>GRANT, where * in PATTERN stands for any text, and GRANT is {GRANT_EXPECTED}"


class GrantRule(NamedTuple):
    claim: str
    pattern: re.Pattern[str]
    grant: Grant


def parse_grant_rule(text: str) -> GrantRule | None:
    """None if the text is not a rule."""
    condition, arrow, grant_text = text.partition("=>")
    claim, equals, pattern = condition.partition("=")
    grant = parse_grant(grant_text.strip())
    if not arrow or not equals or not claim.strip() or not pattern.strip() or grant is None:
        return None
    parts = map(re.escape, pattern.strip().split("*"))
    return GrantRule(claim.strip(), re.compile(".*".join(parts), re.DOTALL), grant)


def grants_for(rules: Iterable[GrantRule], claims: Mapping[str, Any]) -> tuple[Grant, ...]:
    """The grants of all rules that hold. A rule about a claim with several values holds if it holds for one of them."""
    found: dict[Grant, None] = {}
    for rule in rules:
        value = claims.get(rule.claim)
        values = value if isinstance(value, list) else [value]
        if any(isinstance(each, str) and rule.pattern.fullmatch(each) for each in values):
            found[rule.grant] = None
    return tuple(found)
