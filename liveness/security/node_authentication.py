"""Builds what a node needs to verify credentials, by its settings."""

from __future__ import annotations

from liveness.background import BackgroundTasks
from liveness.clock import Clock
from liveness.config.settings import Settings
from liveness.security.authentication import Authenticator
from liveness.security.grant_rules import CERTIFICATE_CLAIM, parse_grant_rule
from liveness.security.http_callers import HttpCallers
from liveness.security.jwt_verifier import JwtConfig, JwtVerifier, KeySet
from liveness.security.token_table import TokenStore, TokenTable


class NodeAuthentication:
    def __init__(
        self, settings: Settings, store: TokenStore, clock: Clock, http_callers: HttpCallers | None = None
    ) -> None:
        self.tokens = TokenTable(store, clock)
        rules = tuple(
            rule for text in settings.auth_jwt_grants if (rule := parse_grant_rule(text)) is not None
        )
        self.keys: KeySet | None = None
        verifier = None
        if settings.auth_jwt_keys:
            self.keys = KeySet(settings.auth_jwt_keys, clock)
            config = JwtConfig(
                settings.auth_jwt_issuer,
                settings.auth_jwt_audience,
                # A rule about certificates must not hold for a claim of the same name.
                tuple(rule for rule in rules if rule.claim != CERTIFICATE_CLAIM),
            )
            verifier = JwtVerifier(config, self.keys, clock)
        self.authenticator = Authenticator(clock, self.tokens, verifier, rules, http_callers)
        if self.keys is not None:
            self.keys.on_change = self.authenticator.recheck

    async def load(self) -> None:
        """Read tokens and keys before the first call is served."""
        await self.tokens.refresh()
        if self.keys is not None:
            await self.keys.fetch()

    def start(self, tasks: BackgroundTasks) -> None:
        tasks.start(self.tokens.run())
        if self.keys is not None:
            tasks.start(self.keys.run())
