"""Modules that programs import by name keep that name, wherever their code lies."""

from __future__ import annotations

from importlib import import_module

import pytest

PUBLIC = {
    "liveness": ("ActivityRef", "Client", "FencingToken", "RetryPolicy", "Worker"),
    "liveness.app": ("Server",),
    "liveness.clock": ("Clock", "ManualClock", "SystemClock"),
    "liveness.fencing": ("FencingGuard", "NotInTransaction", "SeenToken", "StaleToken", "guarded_update"),
    "liveness.relays": ("event_subject", "events_subject", "reschedules_subject", "subject_of", "token_of"),
    "liveness.sdk": ("BlockingClient", "GiveUp", "Quarantine", "RetryLater", "Task", "Worker"),
    "liveness.sdk.health": ("job", "paused", "set", "start", "stopping", "wait_while_paused"),
    "liveness.settings": ("Settings", "SettingsError"),
    "liveness.testing": ("LocalServer",),
    "liveness.webhooks": ("DELIVERY_HEADER", "SIGNATURE_HEADER", "sign", "verify_signature"),
}


@pytest.mark.parametrize("module", PUBLIC)
def test_a_public_module_keeps_its_names(module: str) -> None:
    assert [name for name in PUBLIC[module] if not hasattr(import_module(module), name)] == []
