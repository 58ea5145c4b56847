"""The deployment examples match this version: commands, flags, settings, ports, probes and time-outs."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

from liveness.cli import COMMANDS, main
from liveness.config.settings import SETTING_TYPES, Settings, load_settings, variable_name
from liveness.security.posture import check_posture, is_loopback
from liveness.supervisor.settings_file import load_supervisor_settings, parse_supervisor_settings
from liveness.supervisor.supervisor import REPORT_MS
from tests.certificates import Authority
from tests.integration.deploy.manifests import (
    CONTAINERFILE,
    DEPLOY,
    MANIFESTS,
    SUPERVISED,
    UNITS,
    commands,
    container,
    objects,
    of_kind,
    pods,
    unit,
    variables,
)
from tests.integration.security.tls_server import client_context, http_get, tls_server

FUTURE_SETTINGS = {"advertise", "node_lease_ms"}
"""Multi-node settings that the manifests already use."""
SETTINGS = Settings()


def need(command: str) -> None:
    if command not in COMMANDS:
        pytest.skip(f"this version has no `liveness {command}` yet")


# -- commands


@pytest.mark.parametrize("where", commands())
def test_every_command_parses_with_its_flags(where: str) -> None:
    name, *arguments = commands()[where]
    need(name)
    context = click.Context(main)
    command = main.get_command(context, name)
    assert command is not None
    with command.make_context(name, list(arguments), parent=context):
        pass


@pytest.mark.parametrize("where", variables())
def test_each_variable_is_a_setting_with_a_valid_value(where: str) -> None:
    assert variables()[where], "at least one variable is set"
    shown_values = {}
    for name, value in variables()[where].items():
        settings = {variable_name(setting): setting for setting in SETTING_TYPES}
        if name not in settings and name.removeprefix("LIVENESS_").lower() in FUTURE_SETTINGS:
            continue
        assert name in settings
        # Kubernetes substitutes names here.
        shown = re.sub(r"\$\((\w+)\)", "name", value)
        if shown:
            shown_values[name] = shown
    load_settings({}, shown_values)  # together: some settings need each other


def test_only_known_commands_are_used() -> None:
    """`make_context` above would accept an argument of another command."""
    assert {arguments[0] for arguments in commands().values()} == {"serve", "frontend", "backup", "supervise"}


# -- systemd


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_every_unit(path: Path, tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("there is no systemd-analyze here")
    # It also checks that the program exists.
    here = Path(sys.executable).with_name("liveness")
    copy = tmp_path / path.name
    copy.write_text(path.read_text(encoding="utf-8").replace("/opt/liveness/bin/liveness", str(here)))
    done = subprocess.run([analyze, "verify", "--man=no", copy], capture_output=True, text=True, check=False)
    if "Failed to initialize manager" in done.stderr or "Failed to connect" in done.stderr:
        pytest.skip(f"systemd-analyze does not work here: {done.stderr.strip()}")
    ours = [line for line in done.stderr.splitlines() if path.name in line]
    assert ours == []
    assert done.returncode == 0, done.stderr


def test_the_unit_gives_the_server_time_to_stop_and_always_restarts_it() -> None:
    service = unit(DEPLOY / "systemd" / "liveness.service")["Service"]
    assert service["KillSignal"] == "SIGTERM"
    assert service["Restart"] == "always"
    assert int(service["TimeoutStopSec"]) >= 2 * SETTINGS.shutdown_timeout_s
    assert service["Type"] != "notify", "the server sends no notification"
    assert f"/var/lib/{service['StateDirectory']}/" in service["ExecStart"], "all other folders are read-only"


def test_the_unit_of_a_supervisor_lets_it_stop_its_processes_by_itself() -> None:
    service = unit(DEPLOY / "systemd" / "liveness-supervise.service")["Service"]
    assert (service["Type"], service["NotifyAccess"]) == ("notify", "main")
    assert service["KillMode"] == "mixed"
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    words = shlex.split(service["ExecStart"])
    waits_s = int(words[words.index("--wait") + 1])
    assert int(service["TimeoutStartSec"]) > waits_s
    default = parse_supervisor_settings('[group.g]\ncommand = "x"', "workers.toml").groups[0]
    assert int(service["TimeoutStopSec"]) * 1_000 > default.stop_timeout_ms + REPORT_MS
    assert service["StateDirectory"] == Path(words[words.index("--state-dir") + 1]).name


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_is_not_root_and_writes_only_to_its_own_folders(path: Path) -> None:
    service = unit(path)["Service"]
    assert service["User"] == "liveness"
    assert service["ProtectSystem"] == "strict"
    assert service["NoNewPrivileges"] == "yes"
    assert service["CapabilityBoundingSet"] == ""


def test_the_timer_starts_the_backup() -> None:
    assert unit(DEPLOY / "systemd" / "liveness-backup.timer")["Timer"]["OnCalendar"]
    assert (DEPLOY / "systemd" / "liveness-backup.service") in UNITS


# -- the image


def test_the_image_is_built_in_two_stages_and_does_not_run_as_root() -> None:
    stages = re.findall(r"^FROM (\S+)", CONTAINERFILE, re.MULTILINE)
    assert len(stages) == 2
    assert all("/" not in stage for stage in stages), "base images name no registry"
    user = re.findall(r"^USER (\d+):(\d+)$", CONTAINERFILE, re.MULTILINE)
    assert user == [("10001", "10001")]
    for pod in pods().values():
        assert pod["spec"]["securityContext"]["runAsUser"] == 10_001


def test_the_image_copies_all_parts_of_the_distribution() -> None:
    copied = set(re.findall(r"^COPY (?!--from)(.*) \S+$", CONTAINERFILE, re.MULTILINE))
    names = {name for line in copied for name in line.split()}
    assert names == {"pyproject.toml", "requirements.lock", "README.md", "LICENSE", "liveness", "tasks"}
    ignored = (DEPLOY / "Containerfile.dockerignore").read_text(encoding="utf-8")
    assert {line[1:] for line in ignored.splitlines() if line.startswith("!")} == names


def test_the_image_of_a_supervised_worker_runs_the_supervisor_as_process_1_and_not_as_root() -> None:
    [base] = re.findall(r"^FROM (\S+)$", SUPERVISED, re.MULTILINE)
    assert f"-t {base} ." in CONTAINERFILE
    assert re.findall(r"^USER (\S+)$", SUPERVISED, re.MULTILINE)[-1] == "10001:10001"
    assert '\nENTRYPOINT ["liveness"]\n' in CONTAINERFILE
    assert "ENTRYPOINT" not in SUPERVISED
    [(source, _)] = re.findall(r"^COPY (\S+) (\S+)$", SUPERVISED, re.MULTILINE)
    ignored = (DEPLOY / "supervised" / "Containerfile.dockerignore").read_text(encoding="utf-8")
    assert f"!{source}" in ignored.splitlines()
    words = commands()["supervised/Containerfile"]
    config = DEPLOY.parent / source / words[words.index("--config") + 1]
    assert load_supervisor_settings(config).groups


# -- Kubernetes


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_manifests_contain_complete_objects(path: Path) -> None:
    assert path.read_text(encoding="utf-8").count("kind: ") > 0
    for found in objects():
        assert {"apiVersion", "kind", "metadata"} <= set(found)


def test_the_manifests_contain_the_objects_of_a_cluster() -> None:
    names = sorted((found["kind"], found["metadata"]["name"]) for found in objects())
    assert names == [
        ("Deployment", "liveness-frontend"),
        ("NetworkPolicy", "liveness"),
        ("NetworkPolicy", "liveness-frontend"),
        ("PodDisruptionBudget", "liveness"),
        ("PodDisruptionBudget", "liveness-frontend"),
        ("Secret", "liveness-database"),
        ("Service", "liveness"),
        ("Service", "liveness-frontend"),
        ("Service", "liveness-nodes"),
        ("StatefulSet", "liveness"),
    ]


def matches(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return selector.items() <= labels.items()


def selected(selector: dict[str, str]) -> list[dict[str, Any]]:
    return [pod for pod in pods().values() if matches(selector, pod["metadata"]["labels"])]


def test_every_selector_matches_pods_of_one_kind() -> None:
    for found in of_kind("Service"):
        assert len(selected(found["spec"]["selector"])) == 1, found["metadata"]["name"]
    for found in of_kind("PodDisruptionBudget", "StatefulSet", "Deployment"):
        assert len(selected(found["spec"]["selector"]["matchLabels"])) == 1, found["metadata"]["name"]


@pytest.mark.parametrize("name", pods())
def test_ports_match_the_listen_addresses(name: str) -> None:
    own = container(pods()[name])
    listen = own["args"][own["args"].index("--listen") + 1]
    port = int(listen.rpartition(":")[2])
    assert listen.startswith("0.0.0.0:")
    ports = {"grpc": port}
    if "--http" in own["args"]:
        http = own["args"][own["args"].index("--http") + 1]
        assert http.startswith("0.0.0.0:")
        ports["http"] = int(http.rpartition(":")[2])
    if "--cluster-listen" in own["args"]:
        ports["cluster"] = int(own["args"][own["args"].index("--cluster-listen") + 1].rpartition(":")[2])
    assert {each["name"]: each["containerPort"] for each in own["ports"]} == ports
    for service in of_kind("Service"):
        if selected(service["spec"]["selector"]) == [pods()[name]]:
            assert all(each["targetPort"] == each["name"] for each in service["spec"]["ports"])
            assert {each["name"] for each in service["spec"]["ports"]} <= set(ports)


def test_prometheus_annotations_name_the_port_of_the_metrics() -> None:
    pod = pods()["liveness"]
    own, annotations = container(pod), pod["metadata"]["annotations"]
    listen = own["args"][own["args"].index("--http") + 1]
    assert listen.startswith("0.0.0.0:"), "Prometheus connects to the address of the pod"
    assert {"name": "http", "containerPort": int(listen.rpartition(":")[2])} in own["ports"]
    assert annotations["prometheus.io/port"] == listen.rpartition(":")[2]
    assert annotations["prometheus.io/scrape"] == "true"
    assert annotations["prometheus.io/scheme"] == "https"
    assert annotations["prometheus.io/path"] == "/metrics"


@pytest.mark.parametrize("name", pods())
def test_probes_use_https_because_the_kubelet_cannot_speak_grpc_with_tls(name: str) -> None:
    own = container(pods()[name])
    probes = {probe: own[probe]["httpGet"] for probe in own if probe.endswith("Probe")}
    assert {(probe["port"], probe["scheme"]) for probe in probes.values()} == {("http", "HTTPS")}
    # Ready: it has its shards. Alive: it answers at all.
    assert {probe: found["path"] for probe, found in probes.items()} == {
        probe: "/readyz" if probe == "readinessProbe" else "/healthz" for probe in probes
    }


async def test_the_paths_of_the_probes_are_answered_over_https_without_a_credential(tmp_path: Path) -> None:
    authority = Authority()
    certificate = authority.issue_server()
    certificate.write(tmp_path / "tls.crt", tmp_path / "tls.key")
    files = {"tls_cert_file": f"{tmp_path}/tls.crt", "tls_key_file": f"{tmp_path}/tls.key"}
    async with tls_server(tmp_path, auth="on", **files) as server:
        for path in ("/healthz", "/readyz"):
            status, _ = await http_get(server.http_port, path, client_context(authority.cert_pem))
            assert status == 200


# -- TLS and authentication


@pytest.mark.parametrize(
    "path", sorted(each for each in DEPLOY.rglob("*") if each.is_file()), ids=lambda path: path.name
)
def test_no_example_turns_protection_off(path: Path) -> None:
    if path.suffix in (".json", ".yml"):
        return  # they show the alert about it
    text = path.read_text(encoding="utf-8").lower()
    assert "--insecure" not in text
    assert "liveness_insecure" not in text


@pytest.mark.parametrize(
    "where", [name for name, words in commands().items() if words[0] in ("serve", "frontend")]
)
def test_each_example_listens_beyond_loopback_with_tls_and_authentication(where: str) -> None:
    parser = {word: value for word, value in pairwise(commands()[where]) if word.startswith("--")}
    given = variables().get(where, {})

    def value(setting: str) -> str:
        return parser.get(f"--{setting.replace('_', '-')}", given.get(variable_name(setting), ""))

    settings = SimpleNamespace(
        **{setting: value(setting) for setting in ("listen", "http", "auth", "tls_cert_file", "tls_key_file")}
    )
    assert not is_loopback(settings.listen)
    assert check_posture(settings) is None
    for wrong in ({"auth": "off"}, {"tls_cert_file": ""}):
        assert check_posture(SimpleNamespace(**{**vars(settings), **wrong})) is not None


@pytest.mark.parametrize("name", pods())
def test_every_file_of_a_certificate_is_in_a_mounted_secret(name: str) -> None:
    spec, own = pods()[name]["spec"], container(pods()[name])
    volumes = {each["name"]: each["secret"] for each in spec["volumes"]}
    folders = {each["mountPath"]: volumes[each["name"]]["secretName"] for each in own["volumeMounts"]}
    assert all(each["readOnly"] for each in own["volumeMounts"])
    assert all(each["defaultMode"] == 0o440 for each in volumes.values()), "not readable for everybody"
    kind = "frontend" if "frontend" in name else "node"
    assert folders == {"/etc/liveness/tls": "liveness-tls", "/etc/liveness/cluster": f"liveness-{kind}"}
    readme = (DEPLOY / "README.md").read_text(encoding="utf-8")
    files = [value for variable, value in variables()[name].items() if variable.endswith("_FILE")]
    assert len(files) == 5
    for file in files:
        folder, _, base = file.rpartition("/")
        secret = folders[folder]
        [line] = [
            each
            for each in readme.splitlines()
            if each.startswith("kubectl create secret") and f" {secret} " in each
        ]
        assert base in ("tls.crt", "tls.key") if secret == "liveness-tls" else f"/{base}" in line


def test_only_nodes_and_frontends_reach_the_port_of_the_cluster() -> None:
    policies = {found["metadata"]["name"]: found["spec"] for found in of_kind("NetworkPolicy")}
    for name, pod in pods().items():
        spec = policies[name]
        assert matches(spec["podSelector"]["matchLabels"], pod["metadata"]["labels"])
        assert spec["policyTypes"] == ["Ingress"]
        open_ports = {
            port["port"] for rule in spec["ingress"] if "from" not in rule for port in rule["ports"]
        }
        assert open_ports == {"grpc", "http"}
    [restricted] = [rule for rule in policies["liveness"]["ingress"] if "from" in rule]
    assert restricted["ports"] == [{"port": "cluster"}]
    [peers] = [each["podSelector"]["matchLabels"] for each in restricted["from"]]
    assert len(selected(peers)) == len(pods())


def test_nodes_advertise_names_that_resolve() -> None:
    [found] = of_kind("StatefulSet")
    [headless] = [each for each in of_kind("Service") if each["spec"].get("clusterIP") == "None"]
    assert found["spec"]["serviceName"] == headless["metadata"]["name"]
    assert headless["spec"]["publishNotReadyAddresses"] is True
    [port] = headless["spec"]["ports"]
    advertised = variables()["liveness"]["LIVENESS_ADVERTISE"]
    assert advertised == f"$(POD_NAME).{headless['metadata']['name']}.$(POD_NAMESPACE).svc:{port['port']}"
    # A headless service resolves to the pods, so its port is theirs.
    ports = {each["name"]: each["containerPort"] for each in container(pods()["liveness"])["ports"]}
    assert port["port"] == ports["cluster"]
    names = [each["name"] for each in container(pods()["liveness"])["env"]]
    assert names.index("POD_NAME") < names.index("LIVENESS_ADVERTISE"), (
        "only earlier variables are substituted"
    )
    assert names.index("POD_NAMESPACE") < names.index("LIVENESS_ADVERTISE")


@pytest.mark.parametrize("name", pods())
def test_a_pod_has_time_to_stop(name: str) -> None:
    assert pods()[name]["spec"]["terminationGracePeriodSeconds"] >= 2 * SETTINGS.shutdown_timeout_s


@pytest.mark.parametrize("name", pods())
def test_the_database_url_comes_from_the_secret(name: str) -> None:
    [secret] = of_kind("Secret")
    [db] = [each for each in container(pods()[name])["env"] if each["name"] == "LIVENESS_DB"]
    reference = db["valueFrom"]["secretKeyRef"]
    assert reference["name"] == secret["metadata"]["name"]
    url = secret["stringData"][reference["key"]]
    assert load_settings({}, {"LIVENESS_DB": url}).db == url
    assert "CHANGE-ME" in url


@pytest.mark.parametrize("name", pods())
def test_a_container_has_minimal_privileges(name: str) -> None:
    spec, own = pods()[name]["spec"], container(pods()[name])
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    assert own["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "/" not in own["image"], "the image names no registry"
