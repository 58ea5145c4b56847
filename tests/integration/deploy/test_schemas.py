"""The manifests against their schemas: those of Kubernetes, and small ones of our own for Compose, kustomize and ServiceMonitor."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jsonschema_rs
import pytest
import yaml

from liveness.cli import COMMANDS
from liveness.config.settings import SETTING_TYPES, load_settings, variable_name
from liveness.security.posture import check_posture
from tests.integration.deploy.manifests import CONTAINERFILE, DEPLOY, container, pods, unit
from tests.integration.deploy.schemas import COMPOSE, KUSTOMIZATION, SERVICE_MONITOR

KUBERNETES_VERSION = "1.33"
KUBERNETES = DEPLOY / "kubernetes"
FILES = sorted(KUBERNETES.rglob("*.yaml"))
OWN = {"ServiceMonitor": SERVICE_MONITOR, "Kustomization": KUSTOMIZATION, "Component": KUSTOMIZATION}
COMPOSE_FILE = DEPLOY / "compose" / "compose.yaml"
UNIT = DEPLOY / "worker" / "liveness-worker@.service"


def documents(path: Path) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all(path.read_text(encoding="utf-8")) if found is not None]


def compose() -> dict[str, Any]:
    [found] = documents(COMPOSE_FILE)
    return found


def servers() -> dict[str, dict[str, Any]]:
    """Return the services of the compose file that are programs of ours, and serve."""
    return {
        name: service
        for name, service in compose()["services"].items()
        if service.get("command", [""])[0] in COMMANDS
    }


def image_variables() -> dict[str, str]:
    return dict(re.findall(r"(LIVENESS_\w+)=(\S+)", CONTAINERFILE))


# -- schemas


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(KUBERNETES).as_posix())
def test_each_object_satisfies_the_schema_of_its_kind(path: Path) -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    for found in documents(path):
        if found["kind"] in OWN:
            jsonschema_rs.validate(OWN[found["kind"]], found)
        else:
            kubernetes_validate.validate(found, KUBERNETES_VERSION, strict=True)


def test_a_misspelt_key_is_found() -> None:
    kubernetes_validate = pytest.importorskip("kubernetes_validate")
    [deployment, _] = documents(KUBERNETES / "worker" / "worker.yaml")
    deployment["spec"]["replica"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, KUBERNETES_VERSION, strict=True)
    [monitor] = documents(KUBERNETES / "monitoring" / "servicemonitor.yaml")
    monitor["spec"]["endpoints"][0]["bearerToken"] = "x"
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(SERVICE_MONITOR, monitor)


def test_the_compose_file_satisfies_its_schema_and_names_only_what_it_defines() -> None:
    found = compose()
    jsonschema_rs.validate(COMPOSE, found)
    for name, service in found["services"].items():
        assert set(service["networks"]) <= set(found["networks"]), name
        assert set(service.get("secrets", ())) <= set(found["secrets"]), name
        assert set(service.get("depends_on", ())) <= set(found["services"]), name
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            if not source.startswith("."):
                assert source in found["volumes"], name
            elif not source.startswith(("./secrets", "./worker")):  # these are the user's
                assert (COMPOSE_FILE.parent / source).exists(), source
    for name in ("prometheus.yml", "grafana.yml", "grafana-dashboards.yml"):
        assert documents(COMPOSE_FILE.parent / name)


# -- kustomize


def test_each_kustomization_names_every_manifest_beside_it() -> None:
    bases = [path for path in FILES if path.name == "kustomization.yaml"]
    assert len(bases) == 3
    for base in bases:
        [found] = documents(base)
        beside = {path.name for path in base.parent.glob("*.yaml")} - {
            "kustomization.yaml",
            "secret.example.yaml",
        }
        assert set(found["resources"]) == beside


def test_the_service_monitor_selects_the_service_of_the_nodes_and_shows_a_token_over_tls() -> None:
    [monitor] = documents(KUBERNETES / "monitoring" / "servicemonitor.yaml")
    [endpoint] = monitor["spec"]["endpoints"]
    selector = monitor["spec"]["selector"]["matchLabels"]
    services = [found for found in documents(KUBERNETES / "servers.yaml") if found["kind"] == "Service"]
    scraped = [
        found
        for found in services
        if selector.items() <= found["metadata"]["labels"].items()
        and endpoint["port"] in [port["name"] for port in found["spec"]["ports"]]
    ]
    assert [found["metadata"]["name"] for found in scraped] == ["liveness"]
    assert (endpoint["scheme"], endpoint["path"]) == ("https", "/metrics")
    assert {"authorization", "tlsConfig"} <= set(endpoint)


# -- Compose


def test_the_servers_of_the_compose_file_use_tls_ask_who_calls_and_have_valid_settings() -> None:
    found = servers()
    assert sorted(found) == ["frontend", "node-1", "node-2"]
    for name, service in found.items():
        command = service["command"]
        flags = dict(zip(command[1::2], command[2::2], strict=True))
        given = {**image_variables(), **service["environment"]}
        given |= {variable_name(flag[2:].replace("-", "_")): value for flag, value in flags.items()}
        given = {key: re.sub(r"\$\{[^}]*\}", "x", value) for key, value in given.items()}
        names = {variable_name(setting): setting for setting in SETTING_TYPES}
        assert set(given) <= set(names), name
        load_settings({}, given)
        settings = SimpleNamespace(**{names[key]: value for key, value in given.items()})
        assert check_posture(settings) is None, name
        assert check_posture(SimpleNamespace(**{**vars(settings), "auth": "off"})) is not None
        mounted = {volume.split(":")[1] for volume in service["volumes"]}
        assert all(
            str(Path(value).parent) in mounted for key, value in given.items() if key.endswith("_FILE")
        )
        assert service["read_only"] is True


def test_no_secret_is_in_the_compose_file_and_only_this_machine_reaches_its_ports() -> None:
    text = COMPOSE_FILE.read_text(encoding="utf-8")
    assert "${POSTGRES_PASSWORD:?" in text
    assert not re.search(r"(?i)(password|token|secret): *[\"']?\w{6,}", text.replace("POSTGRES_PASSWORD", ""))
    published = [port for service in compose()["services"].values() for port in service.get("ports", ())]
    assert len(published) == 4
    assert all(port.startswith("127.0.0.1:") for port in published)


# -- workers


def test_the_workers_find_the_server_their_token_and_the_certificate_in_the_environment() -> None:
    wanted = {"LIVENESS_ADDRESS", "LIVENESS_NAMESPACE", "LIVENESS_TOKEN_FILE", "LIVENESS_TLS_CA_FILE"}
    [deployment, policy] = documents(KUBERNETES / "worker" / "worker.yaml")
    own = container(deployment["spec"]["template"])
    assert wanted <= {each["name"] for each in own["env"]}
    folders = [mount["mountPath"] for mount in own["volumeMounts"]]
    for each in own["env"]:
        if each["name"].endswith("_FILE"):
            assert str(Path(each["value"]).parent) in folders
    assert wanted <= set(compose()["services"]["worker"]["environment"])
    text = UNIT.read_text(encoding="utf-8")
    assert wanted <= set(re.findall(r"^Environment=(\w+)=", text, re.MULTILINE))
    assert policy["spec"]["ingress"] == [], "nobody calls a worker"
    service = next(found for found in documents(KUBERNETES / "frontend.yaml") if found["kind"] == "Service")
    address = next(each["value"] for each in own["env"] if each["name"] == "LIVENESS_ADDRESS")
    assert address == f"{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"


def test_a_worker_has_time_to_end_its_work_and_no_rights() -> None:
    text = "\n".join(
        line for line in UNIT.read_text(encoding="utf-8").splitlines() if not line.startswith("Environment=")
    )
    options = dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
    assert (options["Restart"], options["KillSignal"]) == ("always", "SIGTERM")
    assert int(options["TimeoutStopSec"]) >= 30
    assert (options["NoNewPrivileges"], options["ProtectSystem"], options["CapabilityBoundingSet"]) == (
        "yes",
        "strict",
        "",
    )
    reference = unit(DEPLOY / "systemd" / "liveness-supervise.service")["Service"]
    protections = {
        key for key in reference if key.startswith(("Protect", "Restrict", "Private", "SystemCall"))
    }
    assert protections <= set(options)
    [deployment, _] = documents(KUBERNETES / "worker" / "worker.yaml")
    spec = deployment["spec"]["template"]["spec"]
    assert spec["terminationGracePeriodSeconds"] >= 30
    assert spec["securityContext"] == pods()["liveness"]["spec"]["securityContext"]
    assert container({"spec": spec})["securityContext"] == container(pods()["liveness"])["securityContext"]
