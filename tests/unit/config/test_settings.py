"""The sources of settings, their precedence, and the messages about invalid ones."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from liveness.config.frontend_settings import load_frontend_settings
from liveness.config.settings import (
    SETTING_TYPES,
    SUPERVISOR_VARIABLES,
    ClientSettings,
    Settings,
    SettingsError,
    load_client_settings,
    load_settings,
    without_password,
)
from liveness.sdk import component_environment
from liveness.supervisor import child, group, probes

DB = (
    "sqlite:///FILE or postgresql://USER:PASSWORD@HOST:PORT/DATABASE, the latter with ?ssl=require if need be; "
    "several hosts: postgresql://USER:PASSWORD@/DATABASE?host=HOST:PORT&host=HOST:PORT"
)
NUMBER_OF_SECONDS = "a number above 0 and at most 20"
QUEUES = (
    "NAMESPACE/TASK_QUEUE, or several with commas between them, where * alone stands for any namespace or any "
    "task queue"
)
COLLECTOR = "http://HOST:PORT or https://HOST:PORT of a collector that takes OTLP over gRPC"
SECRET = "correct horse battery staple"
LISTEN = "HOST:PORT, for example 127.0.0.1:7400, 0.0.0.0:7400 or [::1]:7400; port 0 takes any free one"


def toml(folder: Path, text: str) -> Path:
    file = folder / "liveness.toml"
    file.write_text(text)
    return file


def refusal(flags: dict[str, Any], environ: dict[str, str], file: Path | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings(flags, environ, file)
    return str(caught.value)


def test_without_any_source_settings_have_their_defaults() -> None:
    assert load_settings({}, {}) == Settings()


def test_every_setting_has_a_type_rule() -> None:
    assert set(SETTING_TYPES) == set(Settings.__struct_fields__)


def test_a_flag_overrides_a_variable_a_file_and_the_default_in_this_order(tmp_path: Path) -> None:
    file = toml(tmp_path, 'shards = 3\nlisten = "127.0.0.1:3"\nlog_level = "error"\n')
    settings = load_settings(
        {"shards": "1", "listen": None}, {"LIVENESS_SHARDS": "2", "LIVENESS_LISTEN": "127.0.0.1:2"}, file
    )
    assert (settings.shards, settings.listen, settings.log_level, settings.log_format) == (
        1,
        "127.0.0.1:2",
        "error",
        "auto",
    )


def test_a_false_flag_overrides_a_true_variable() -> None:
    assert load_settings({"reflection": False}, {"LIVENESS_REFLECTION": "true"}).reflection is False


def test_the_config_flag_overrides_the_config_variable(tmp_path: Path) -> None:
    by_variable, by_flag = tmp_path / "variable.toml", tmp_path / "flag.toml"
    by_variable.write_text("shards = 5")
    by_flag.write_text("shards = 6")
    environ = {"LIVENESS_CONFIG": str(by_variable)}
    assert load_settings({}, environ).shards == 5
    assert load_settings({}, environ, by_flag).shards == 6


def test_every_setting_can_come_from_a_file(tmp_path: Path) -> None:
    secret_file = tmp_path / "secret"
    secret_file.write_text(SECRET)
    file = toml(
        tmp_path,
        """
        db = "postgresql://someone@db.example/liveness?ssl=require"
        listen = "[::1]:0"
        listener = "python"
        cluster_listen = "[::1]:8400"
        advertise = "10.0.0.7:8400"
        cluster_cert_file = "node.pem"
        cluster_key_file = "node.key"
        cluster_ca_file = "ca.pem"
        insecure = true
        node_lease_ms = 2000
        db_connections = 20
        shards = 4096
        reflection = false
        log_level = "debug"
        log_format = "json"
        commit_interval_ms = 0
        takeover_grace_ms = 0
        checkpoint_interval_s = 0.5
        retention_interval_s = 60
        component_metrics_retention_s = 3600
        component_metrics_otlp = "http://collector.example:4317"
        database_bytes_max = 50_000_000_000
        task_retention_s = 0
        task_attempts_max = 1
        shutdown_timeout_s = 0
        traces = "https://collector.example:4317"
        register_self = "off"
        auth = "on"
        auth_jwt_issuer = "https://issuer.example"
        auth_jwt_audience = "liveness"
        auth_jwt_keys = "https://issuer.example/jwks"
        auth_jwt_grants = ["sub=system:serviceaccount:shop:*=>worker:shop", "groups=oncall=>operator:*"]
        audit_retention_s = 0
        principal_calls_per_s = 0
        principal_calls_burst = 1
        principal_bytes_per_s = 0
        principal_streams_max = 0
        principal_connections_max = 0
        namespaces = ["default", "orders"]
        webhook_url = "https://engine.example/reschedules"
        http = "127.0.0.1:7481"
        http_hosts = ["liveness.example"]
        tls_cert_file = "server.pem"
        tls_key_file = "server.key"
        tls_client_ca_file = "clients.pem"
        tls_client_auth = "required"
        webhook_secret_file = "SECRET_FILE"
        db_password_file = "SECRET_FILE"
        webhook_queues = ["orders/*"]
        webhook_timeout_s = 20
        bridge_temporal = ["temporal.example:7233"]
        bridge_listen = "127.0.0.1:7234"
        bridge_upstream_tls = true
        bridge_upstream_ca_file = "temporal-ca.pem"
        bridge_upstream_cert_file = "bridge.pem"
        bridge_upstream_key_file = "bridge.key"
        bridge_upstream_server_name = "temporal.example"
        bridge_upstream_api_key_file = "api.key"
        bridge_tls_cert_file = "listen.pem"
        bridge_tls_key_file = "listen.key"
        bridge_tls_worker_ca_file = "workers.pem"
        bridge_lease = "9s"
        bridge_restart_allowance = "1m"
        bridge_hints = "off"
        bridge_skip = ["slow-*", "type:upload"]
        bridge_only = ["type:*"]
        bridge_temporal_ui = "https://temporal.example"
        door_noetl_replicas = "number"
        relay = ["nats://a.example:4222", "tls://b.example"]
        relay_creds_file = "nats.creds"
        relay_queues = ["default/*"]
        relay_events = true
        relay_stream = "ORDERS"
        relay_replicas = 3
        door = ["noetl:default", "pgai:orders=postgresql://liveness@db.example/app"]
        door_pgai_hints = "3s"
        door_pgai_restart_allowance = "30m"
        """.replace("SECRET_FILE", str(secret_file)),
    )
    settings = load_settings({}, {}, file)
    assert all(getattr(settings, name) != getattr(Settings(), name) for name in SETTING_TYPES)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("db", "", DB),
        ("db", "liveness.db", DB),
        ("db", "sqlite://", DB),
        ("db", "sqlite:///", DB),
        ("db", "sqlite:///folder/", DB),
        ("db", "sqlite:///:memory:", DB),
        ("db", "sqlite:///x.db?mode=ro", DB),
        ("db", "postgresql://", DB),
        ("db", "postgresql://h:port/x", DB),
        ("db", "postgresql://h:70000/x", DB),
        ("db", "postgresql://h/x?sslmode=require", DB),
        ("db", "postgres://h/x", DB),
        ("db", "postgresql://a:1,b:2/x", DB),
        ("db", "postgresql:///x?host=a:1,b:2", DB),
        ("db", "postgresql:///x?host=a:1&host=b", DB),
        ("db", "postgresql:///x?host=a:1&host=b:0", DB),
        ("db", "postgresql://h/x?host=a:1&host=b:2", DB),
        ("listen", "7400", LISTEN),
        ("listen", ":7400", LISTEN),
        ("listen", "localhost", LISTEN),
        ("listen", "::1:7400", LISTEN),
        ("listen", "localhost:65536", LISTEN),
        ("listen", "localhost:-1", LISTEN),
        ("listen", "http://localhost:7400", LISTEN),
        ("shards", "0", "a whole number from 1 to 4096"),
        ("shards", "4097", "a whole number from 1 to 4096"),
        ("shards", "6_4", "a whole number from 1 to 4096"),
        ("shards", "64.0", "a whole number from 1 to 4096"),
        ("shards", "٣", "a whole number from 1 to 4096"),
        ("reflection", "maybe", "true or false"),
        ("log_level", "INFO", "one of debug, info, warning, error"),
        ("log_format", "text", "one of auto, console, json"),
        ("commit_interval_ms", "-1", "a number from 0 to 1000"),
        ("commit_interval_ms", "1000.5", "a number from 0 to 1000"),
        ("commit_interval_ms", "nan", "a number from 0 to 1000"),
        ("takeover_grace_ms", "600001", "a whole number from 0 to 600000"),
        ("checkpoint_interval_s", "0", "a number above 0 and at most 86400"),
        ("retention_interval_s", "0", "a number above 0 and at most 2592000"),
        ("task_retention_s", "inf", "a number from 0 to 315360000"),
        ("task_attempts_max", "0", "a whole number from 1 to 1000"),
        ("shutdown_timeout_s", "1e3", "a number from 0 to 3600"),
        ("traces", "127.0.0.1:4317", COLLECTOR),
        ("traces", "http://collector", COLLECTOR),
        ("traces", "http://user@collector:4317", COLLECTOR),
        ("traces", "http://collector:4317/v1/traces", COLLECTOR),
        ("namespaces", "a,,b", "names of namespaces with commas between them"),
        ("namespaces", "a\x00", "names of namespaces with commas between them"),
        ("namespaces", "\udcff", "names of namespaces with commas between them"),
        ("namespaces", "n" * 256, "names of namespaces with commas between them"),
        ("webhook_queues", "", QUEUES),
        ("webhook_queues", "*", QUEUES),
        ("webhook_queues", "orders/", QUEUES),
        ("webhook_queues", "/resize", QUEUES),
        ("webhook_queues", "orders/resize-*", QUEUES),
        ("webhook_queues", "orders/resize,", QUEUES),
        ("webhook_timeout_s", "0", NUMBER_OF_SECONDS),
        ("webhook_timeout_s", "20.5", NUMBER_OF_SECONDS),
        ("relay_queues", "orders", QUEUES),
        ("relay_stream", "a.b", "a name of up to 200 letters, digits, - and _"),
        ("relay_replicas", "6", "a whole number from 1 to 5"),
    ],
)
def test_the_refusal_of_a_bad_value_names_its_source_and_its_rule(name: str, value: str, rule: str) -> None:
    flag_name = "--" + name.replace("_", "-")
    assert refusal({name: value}, {}) == f"flag {flag_name} is {value!r}, but must be {rule}."
    variable_name = f"LIVENESS_{name.upper()}"
    assert (
        refusal({}, {variable_name: value}) == f"variable {variable_name} is {value!r}, but must be {rule}."
    )
    with pytest.raises(SettingsError, match=f"^setting {name} is "):
        Settings(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "shown", "rule"),
    [
        ('shards = "64"', "'64'", "a whole number from 1 to 4096"),
        ("shards = true", "True", "a whole number from 1 to 4096"),
        ("shards = 1e400", "inf", "a whole number from 1 to 4096"),
        ('reflection = "true"', "'true'", "true or false"),
        ("reflection = 1", "1", "true or false"),
        ("commit_interval_ms = nan", "nan", "a number from 0 to 1000"),
        (f"commit_interval_ms = 1{'0' * 400}", f"1{'0' * 400}", "a number from 0 to 1000"),
        ("log_level = [1]", "[1]", "one of debug, info, warning, error"),
    ],
)
def test_the_refusal_of_a_bad_value_in_a_file_names_the_file(
    tmp_path: Path, line: str, shown: str, rule: str
) -> None:
    file = toml(tmp_path, line)
    name = line.split()[0]
    assert refusal({}, {}, file) == f"key {name} in {file} is {shown}, but must be {rule}."


def test_a_bad_value_is_refused_even_if_another_source_overrides_it() -> None:
    assert "LIVENESS_SHARDS" in refusal({"shards": "2"}, {"LIVENESS_SHARDS": "none"})


def test_the_refusal_of_an_unknown_key_suggests_a_similar_setting(tmp_path: Path) -> None:
    file = toml(tmp_path, "shard = 5")
    assert refusal({}, {}, file) == f"key shard in {file} is not a setting; did you mean shards?"


def test_the_refusal_of_a_dissimilar_key_lists_all_settings(tmp_path: Path) -> None:
    file = toml(tmp_path, "[zzz]\nx = 1")
    assert (
        refusal({}, {}, file)
        == f"key zzz in {file} is not a setting; there are: {', '.join(sorted(SETTING_TYPES))}."
    )


def test_the_refusal_of_an_unknown_variable_suggests_a_similar_one() -> None:
    message = "variable LIVENESS_LOGLEVEL is not a setting; did you mean LIVENESS_LOG_LEVEL?"
    assert refusal({}, {"LIVENESS_LOGLEVEL": "debug"}) == message
    with pytest.raises(SettingsError, match="did you mean LIVENESS_ADDRESS"):
        load_client_settings({}, {"LIVENESS_ADRESS": "127.0.0.1:1"})


def test_the_common_prefix_alone_gives_no_suggestion() -> None:
    assert "did you mean" not in refusal({}, {"LIVENESS_QQQ": "1"})


def test_variables_of_other_programs_are_ignored() -> None:
    environ = {
        "PATH": "/bin",
        "LIVENESS_ADDRESS": "127.0.0.1:1",
        "LIVENESS_NAMESPACE": "x",
        "LIVENESS_TEST_ANYTHING": "x",
    }
    assert load_settings({}, environ) == Settings()


def test_kubernetes_variables_for_a_service_named_liveness_are_ignored() -> None:
    environ = {
        "LIVENESS_SERVICE_HOST": "10.0.0.1",
        "LIVENESS_SERVICE_PORT": "7400",
        "LIVENESS_SERVICE_PORT_GRPC": "7400",
        "LIVENESS_PORT": "tcp://10.0.0.1:7400",
        "LIVENESS_PORT_7400_TCP": "tcp://10.0.0.1:7400",
        "LIVENESS_PORT_7400_TCP_PROTO": "tcp",
        "LIVENESS_UI_SERVICE_HOST": "10.0.0.2",
    }
    assert load_settings({}, environ) == Settings()
    assert "LIVENESS_PORT is not a setting" in refusal({}, {"LIVENESS_PORT": "7400"})


def test_an_unreadable_configuration_file_is_refused(tmp_path: Path) -> None:
    missing = tmp_path / "missing.toml"
    assert refusal({}, {}, missing) == (
        f"the configuration file {missing} cannot be read: No such file or directory."
    )
    assert refusal({}, {"LIVENESS_CONFIG": str(tmp_path)}) == (
        f"the configuration file {tmp_path} cannot be read: Is a directory."
    )


def test_a_configuration_file_that_is_not_toml_is_refused(tmp_path: Path) -> None:
    file = toml(tmp_path, "shards: 5")
    assert refusal({}, {}, file).startswith(f"the configuration file {file} is not valid TOML: ")
    file.write_bytes(b"\xff\xfe")
    assert refusal({}, {}, file) == f"the configuration file {file} is not UTF-8 text."


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("mysql://root:hunter2@h/x", "mysql://root:***@h/x"),
        ("postgresql://u:hun/ter2@more@h:1/x", "postgresql://u:***@h:1/x"),
        ("root:hunter2@h", "root:***@h"),
        ("postgresql://u@h/x?password=hunter2&ssl=require", "postgresql://u@h/x?password=***&ssl=require"),
        ("postgresql://u@h:5432/x", "postgresql://u@h:5432/x"),
        ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db"),
    ],
)
def test_passwords_are_masked_in_urls(url: str, shown: str) -> None:
    assert without_password(url) == shown


def test_refusals_contain_no_password() -> None:
    assert "hunter2" not in refusal({"db": "mysql://root:hunter2@h/x"}, {})


def test_a_sqlite_url_gives_the_path_of_its_file() -> None:
    assert Settings(db="sqlite:///x/y.db").sqlite_path == Path("x/y.db")
    assert Settings(db="sqlite:////x/y.db").sqlite_path == Path("/x/y.db")
    assert Settings(db="postgresql://h/x").sqlite_path is None


def test_a_database_may_have_several_hosts() -> None:
    url = "postgresql://u:secret@/x?host=a.example:5432&host=10.0.0.7:5433&target_session_attrs=primary"
    assert Settings(db=url).db == url


def test_the_repr_of_settings_contains_no_secret() -> None:
    settings = Settings(
        db="postgresql://u:hunter2@h/x",
        webhook_url="https://engine.example/hooks/s3cr3t?key=s3cr3t",
        webhook_secret=SECRET,
        webhook_queues="a/*",  # type: ignore[arg-type]
        relay="nats://s3cr3t@h,tls://u:hunter2@h2:4222",  # type: ignore[arg-type]
        relay_queues="b/*",  # type: ignore[arg-type]
    )
    console = Console(file=StringIO(), width=2_000)
    console.print(settings)
    assert isinstance(console.file, StringIO)
    for shown in (repr(settings), str(settings), console.file.getvalue()):
        assert "https://engine.example/***" in shown
        assert "nats://***@h,tls://***@h2:4222" in shown
        assert not [secret for secret in ("hunter2", "s3cr3t", SECRET) if secret in shown]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "http://127.0.0.1:8080",
        "http://[::1]:8080/reschedules",
        "https://engine.example/reschedules?team=a&b",
        "https://engine.example?x",
    ],
)
def test_valid_webhook_urls_are_accepted(url: str) -> None:
    settings = load_settings({"webhook_url": url}, {"LIVENESS_WEBHOOK_SECRET": SECRET})
    assert (settings.webhook_url, settings.webhook_secret) == (url, SECRET)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("engine.example", "engine.example"),
        ("ftp://engine.example/x", "ftp://engine.example/***"),
        ("https://", "https://"),
        ("https://engine..example/", "https://engine..example/"),
        (f"https://{'x' * 64}.example", f"https://{'x' * 64}.example"),
        ("https:///x", "https:///x"),
        ("https://engine.example:0/", "https://engine.example:0/"),
        ("https://engine.example:65536/x", "https://engine.example:65536/***"),
        ("https://engine.example:http/x", "https://engine.example:http/***"),
        ("https://[1.2.3]/", "https://[1.2.3]/"),
        ("https://someone:hunter2@engine.example/x", "https://***@engine.example/***"),
        ("https://hunter2@engine.example/x@y", "https://***@y"),
        ("https://engine.example/a b", "https://engine.example/***"),
        ("https://engine.example/a\r\nb: c", "https://engine.example/***"),
        ("https://engine.example/a#b", "https://engine.example/***"),
        ("https://bücher.example/", "https://bücher.example/"),
        (f"https://engine.example/{'x' * 2_000}", "https://engine.example/***"),
    ],
)
def test_the_refusal_of_a_webhook_url_hides_its_path(url: str, shown: str) -> None:
    message = refusal({"webhook_url": url}, {})
    rule = "http://HOST:PORT/PATH or https://HOST/PATH, without a user name and without #"
    assert message == f"flag --webhook-url is {shown!r}, but must be {rule}."


@pytest.mark.parametrize("secret", ["hunter2", " " + "x" * 16, "x" * 16 + "\n", "\udcff" * 16, "x" * 1_001])
def test_the_refusal_of_a_secret_hides_it(tmp_path: Path, secret: str) -> None:
    rule = "a text of 16 to 1000 printable characters with no space around it"
    assert refusal({}, {"LIVENESS_WEBHOOK_SECRET": secret}) == (
        f"variable LIVENESS_WEBHOOK_SECRET is '***', but must be {rule}."
    )
    file = toml(tmp_path, "webhook_secret = 1234567890123456")
    assert refusal({}, {}, file) == f"key webhook_secret in {file} is '***', but must be {rule}."


def test_a_webhook_url_needs_a_secret() -> None:
    assert refusal({"webhook_url": "https://engine.example"}, {"LIVENESS_WEBHOOK_SECRET": ""}) == (
        "webhook_url is set, but there is no secret to sign with; set webhook_secret or webhook_secret_file."
    )
    assert load_settings({}, {"LIVENESS_WEBHOOK_SECRET": SECRET}).webhook_url == ""


def test_the_webhook_secret_can_be_in_a_separate_file(tmp_path: Path) -> None:
    secret_file = tmp_path / "secret"
    secret_file.write_text(f"{SECRET}\n")
    environ = {"LIVENESS_WEBHOOK_URL": "https://engine.example"}
    flags = {"webhook_secret_file": str(secret_file)}
    assert load_settings(flags, environ).webhook_secret == SECRET
    assert refusal(flags, {**environ, "LIVENESS_WEBHOOK_SECRET": SECRET}) == (
        "webhook_secret and webhook_secret_file are both set; keep one of them."
    )


def test_the_refusal_of_a_secret_file_hides_its_content(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    flags = {"webhook_secret_file": str(file)}
    start = f"the webhook secret file {file}"
    assert refusal(flags, {}) == f"{start} cannot be read: No such file or directory."
    rule = "must hold a text of 16 to 1000 printable characters with no space around it."
    for content in (b"", b"hunter2", b"hunter2 hunter2\nhunter2 hunter2"):
        file.write_bytes(content)
        assert refusal(flags, {}) == f"{start} {rule}"
    file.write_bytes(b"\xff" * 16)
    assert refusal(flags, {}) == f"{start} is not UTF-8 text."
    assert refusal({"webhook_secret_file": "\0"}, {}).endswith("must be the name of a file.")


def test_list_settings_accept_text_with_commas_and_toml_lists(tmp_path: Path) -> None:
    by_text = {"webhook_queues": " orders/resize , */hash,orders/resize,a/b/c ", "namespaces": "orders, a"}
    expected = (("orders/resize", "*/hash", "a/b/c"), ("orders", "a"))

    def lists(settings: Settings) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return settings.webhook_queues, settings.namespaces

    assert lists(load_settings(by_text, {})) == expected
    assert (
        lists(load_settings({}, {f"LIVENESS_{name.upper()}": by_text[name] for name in by_text})) == expected
    )
    lines = 'webhook_queues = ["orders/resize", "*/hash", "a/b/c"]\nnamespaces = ["orders", "a"]'
    assert lists(load_settings({}, {}, toml(tmp_path, lines))) == expected
    lines = 'webhook_queues = "orders/resize,*/hash,a/b/c"\nnamespaces = "orders,a"'
    assert lists(load_settings({}, {}, toml(tmp_path, lines))) == expected
    assert load_settings({"namespaces": ""}, {}).namespaces == ()
    assert Settings(namespaces="orders,a").namespaces == ("orders", "a")  # type: ignore[arg-type]
    file = toml(tmp_path, "namespaces = [1]")
    assert refusal({}, {}, file) == (
        f"key namespaces in {file} is [1], but must be names of namespaces with commas between them."
    )


def test_webhook_queues_of_a_namespace_that_is_not_served_are_refused() -> None:
    environ = {"LIVENESS_WEBHOOK_SECRET": SECRET, "LIVENESS_WEBHOOK_URL": "https://engine.example"}
    assert refusal({"namespaces": "a,b", "webhook_queues": "a/x,c/*"}, environ) == (
        "webhook_queues has c/*, but c is not among the namespaces that are served: a, b."
    )
    assert load_settings({"namespaces": "a,b", "webhook_queues": "a/x,*/y"}, environ).namespaces == ("a", "b")


def test_a_client_reads_its_address_and_namespace_from_flags_or_variables() -> None:
    environ = {
        "LIVENESS_ADDRESS": "a:1",
        "LIVENESS_NAMESPACE": "billing",
        "LIVENESS_SHARDS": "not checked here",
    }
    assert load_client_settings({}, {}) == ClientSettings(address="127.0.0.1:7400", namespace="default")
    assert load_client_settings({}, environ) == ClientSettings(address="a:1", namespace="billing")
    assert load_client_settings({"address": "b:2"}, environ).address == "b:2"


def test_a_client_accepts_several_addresses_and_drops_duplicates() -> None:
    assert load_client_settings({}, {}).addresses == ("127.0.0.1:7400",)
    settings = load_client_settings({}, {"LIVENESS_ADDRESS": "b:2, a:1,[::1]:3,b:2"})
    assert settings.addresses == ("b:2", "a:1", "[::1]:3")


@pytest.mark.parametrize(
    "address",
    [
        "",
        "localhost",
        "http://localhost:7400",
        "localhost:0",
        "::1:7400",
        "a:1,",
        "a:1,b",
        "a:1;b:2",
        "a:1 b:2",
    ],
)
def test_an_invalid_client_address_is_refused(address: str) -> None:
    with pytest.raises(SettingsError, match=r"^variable LIVENESS_ADDRESS is '.*', but must be HOST:PORT"):
        load_client_settings({}, {"LIVENESS_ADDRESS": address})


@pytest.mark.parametrize(
    "urls",
    [
        "127.0.0.1:4222",
        "http://h:4222",
        "nats://",
        "nats://h:0",
        "nats://h:65536",
        "nats://h/x",
        "nats://h,",
        "ws://h",
    ],
)
def test_the_refusal_of_a_relay_url_hides_its_password(urls: str) -> None:
    message = refusal({"relay": urls}, {})
    assert message.startswith("flag --relay is ")
    assert "but must be nats://HOST:PORT or tls://HOST:PORT" in message
    assert "hunter2" not in refusal({"relay": f"nats://a:hunter2@h,{urls}"}, {})
    assert "hunter2" not in refusal({"relay": f"{urls}@hunter2:hunter2@"}, {})


def test_overlapping_webhook_and_relay_queues_are_refused() -> None:
    flags = {"relay": "nats://h", "webhook_url": "https://engine.example"}
    environ = {"LIVENESS_WEBHOOK_SECRET": SECRET}

    def both(relay: str, webhook: str) -> dict[str, object]:
        return {**flags, "relay_queues": relay, "webhook_queues": webhook}

    for relay, webhook in (("*/*", "a/x"), ("a/*", "*/x"), ("a/x", "b/y,a/x")):
        assert refusal(both(relay, webhook), environ) == (
            f"relay_queues has {relay} and webhook_queues has {webhook.split(',')[-1]}, but a reschedule goes to one "
            "receiver; name task queues that have nothing in common."
        )
    assert load_settings(both("a/*", "b/*"), environ).relay_queues == ("a/*",)
    assert load_settings(both("*/x", "*/y"), environ).webhook_queues == ("*/y",)


def test_relayed_events_need_a_broker() -> None:
    assert refusal({"relay_events": "true"}, {}) == (
        "relay_events is set, but there is no broker to relay to; set relay."
    )


def test_relay_queues_of_a_namespace_that_is_not_served_are_refused() -> None:
    assert refusal({"namespaces": "a", "relay": "nats://h", "relay_queues": "c/*"}, {}) == (
        "relay_queues has c/*, but c is not among the namespaces that are served: a."
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tls_cert_file": "server.pem"}, "tls_cert_file is set without tls_key_file; TLS needs both."),
        ({"tls_key_file": "server.key"}, "tls_key_file is set without tls_cert_file; TLS needs both."),
        (
            {"tls_client_ca_file": "clients.pem"},
            "tls_client_ca_file is set without tls_cert_file; TLS needs both.",
        ),
        (
            {"tls_cert_file": "server.pem", "tls_key_file": "server.key", "tls_client_auth": "required"},
            "tls_client_auth is required, but nothing says which certificates are good; set tls_client_ca_file.",
        ),
    ],
)
def test_settings_of_tls_that_contradict_each_other(settings: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError) as of_server:
        load_settings(settings, {})
    assert str(of_server.value) == message
    with pytest.raises(SettingsError) as of_frontend:
        load_frontend_settings({"nodes": "a:7400", **settings}, {})
    assert str(of_frontend.value) == message


POSTGRES = "postgresql://host/database"


def test_the_cluster_listens_a_thousand_ports_higher_and_not_at_all_on_sqlite() -> None:
    assert Settings(db=POSTGRES).cluster_listen_address == "127.0.0.1:8400"
    assert Settings(db=POSTGRES, listen="[::1]:7500").cluster_listen_address == "[::1]:8500"
    assert Settings(db=POSTGRES, listen="127.0.0.1:0").cluster_listen_address == "127.0.0.1:0"
    assert Settings(db=POSTGRES, cluster_listen="127.0.0.2:1").cluster_listen_address == "127.0.0.2:1"
    assert Settings().cluster_listen_address == ""
    assert Settings(cluster_listen="127.0.0.1:1").cluster_listen_address == "127.0.0.1:1"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"listen": "0.0.0.0:7400"}, "cluster_listen is 0.0.0.0:8400, beyond loopback"),
        ({"cluster_listen": "10.0.0.7:8400"}, "cluster_listen is 10.0.0.7:8400, beyond loopback"),
        ({"advertise": "10.0.0.7:8400"}, "advertise is 10.0.0.7:8400, beyond loopback"),
        ({"advertise": "10.0.0.7:7400"}, "advertise the port of that one"),
        ({"listen": "127.0.0.1:65000"}, "no port 1000 above it"),
        ({"cluster_key_file": "k"}, "set cluster_cert_file and cluster_ca_file, too"),
    ],
)
def test_a_cluster_beyond_loopback_needs_tls(values: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        Settings(db=POSTGRES, **values)  # type: ignore[arg-type]


def test_tls_or_insecure_let_the_cluster_listen_beyond_loopback() -> None:
    files = {"cluster_cert_file": "c", "cluster_key_file": "k", "cluster_ca_file": "a"}
    for values in (files, {"insecure": True}):
        made = Settings(db=POSTGRES, listen="0.0.0.0:7400", advertise="10.0.0.7:8400", **values)
        assert made.cluster_listen_address == "0.0.0.0:8400"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"auth": "on", "auth_jwt_issuer": "https://issuer.example"},
            "auth_jwt_issuer is set, but JWTs need auth_jwt_audience and auth_jwt_keys as well; set all three.",
        ),
        (
            {"auth_jwt_grants": ("sub=a=>worker:shop",)},
            "auth_jwt_grants is set, but nobody is asked; set auth to on.",
        ),
    ],
)
def test_settings_of_identity_must_go_together(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as raised:
        Settings(**values)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    "source", ["keys.json", "https://issuer.example/keys", "http://127.0.0.1:8080/keys", "http://[::1]/keys"]
)
def test_keys_come_from_a_file_https_or_this_machine(source: str) -> None:
    Settings(auth="on", auth_jwt_issuer="i", auth_jwt_audience="a", auth_jwt_keys=source)


@pytest.mark.parametrize(
    "source", ["http://issuer.example/keys", "https://user@issuer.example/keys", "https://"]
)
def test_keys_do_not_come_over_plain_text(source: str) -> None:
    with pytest.raises(SettingsError, match="auth_jwt_keys"):
        Settings(auth="on", auth_jwt_issuer="i", auth_jwt_audience="a", auth_jwt_keys=source)


@pytest.mark.parametrize(
    "rule", ["", "sub", "sub=a", "sub=a=>root:shop", "=a=>worker:shop", "sub=a=>worker:"]
)
def test_rules_that_grant_nothing_are_refused(rule: str) -> None:
    with pytest.raises(SettingsError, match="auth_jwt_grants"):
        Settings(auth="on", auth_jwt_grants=(rule,))


def test_a_supervised_server_starts_although_its_supervisor_sets_variables() -> None:
    told = {
        value
        for module in (component_environment, child, group, probes)
        for value in vars(module).values()
        if isinstance(value, str) and value.startswith("LIVENESS_")
    } - {"LIVENESS_ADDRESS", "LIVENESS_NAMESPACE"}
    assert told <= SUPERVISOR_VARIABLES
    assert load_settings({}, dict.fromkeys(SUPERVISOR_VARIABLES, "x")) == Settings()
