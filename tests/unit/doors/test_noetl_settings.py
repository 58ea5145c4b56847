"""The variables of NoETL as settings of its door."""

from __future__ import annotations

import pytest

from liveness.doors.noetl.settings import NoetlSettings, NoetlSettingsError, from_environment


def test_without_variables_the_documented_defaults_hold() -> None:
    settings = from_environment({})
    assert settings.server_name.startswith("server-")
    assert settings == NoetlSettings(server_name=settings.server_name)
    assert (settings.offline_after_ms, settings.sweep_interval_ms, settings.heartbeat_interval_ms) == (
        45_000, 15_000, 15_000,
    )  # fmt: skip
    assert settings.metrics_interval_ms == 60_000
    assert (settings.pool_name, settings.pool_runtime, settings.auto_recreate) == ("worker-cpu", "cpu", True)


def test_every_variable_is_read() -> None:
    settings = from_environment(
        {
            "NOETL_SERVER_OFFLINE_AFTER": "2.5", "NOETL_AUTO_RECREATE_RUNTIME": "False", "NOETL_SERVER_NAME": "main",
            "NOETL_SERVER_SWEEP_INTERVAL": "5", "NOETL_WORKER_HEARTBEAT_INTERVAL": "1", "NOETL_WORKER_POOL_RUNTIME": "GPU",
            "NOETL_SERVER_METRICS_INTERVAL": "30",
            "NOETL_WORKER_CAPACITY": "8", "NOETL_WORKER_LABELS": "a, b,,",
        },
        "etl",
        "number",
    )  # fmt: skip
    assert settings == NoetlSettings(
        namespace="etl", replicas="number", offline_after_ms=2_500, auto_recreate=False, server_name="main",
        metrics_interval_ms=30_000, sweep_interval_ms=5_000, heartbeat_interval_ms=1_000, pool_name="worker-gpu", pool_runtime="gpu", capacity=8,
        labels=("a", "b"),
    )  # fmt: skip
    assert from_environment({"NOETL_SERVER_METRICS_INTERVAL": "0"}).metrics_interval_ms == 0
    assert from_environment({"NOETL_WORKER_POOL_NAME": "pool"}).pool_name == "pool"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("NOETL_SERVER_OFFLINE_AFTER", "0"),
        ("NOETL_SERVER_OFFLINE_AFTER", "soon"),
        ("NOETL_SERVER_METRICS_INTERVAL", "-1"),
        ("NOETL_SERVER_OFFLINE_AFTER", "1e9"),
        ("NOETL_AUTO_RECREATE_RUNTIME", "perhaps"),
        ("NOETL_SERVER_NAME", "a\nb"),
        ("NOETL_WORKER_CAPACITY", "-1"),
        ("NOETL_WORKER_POOL_NAME", "x" * 201),
    ],
)
def test_a_wrong_value_gets_one_sentence(variable: str, value: str) -> None:
    with pytest.raises(NoetlSettingsError) as raised:
        from_environment({variable: value})
    assert str(raised.value).startswith(f"{variable} is ")
    assert str(raised.value).endswith(".")
