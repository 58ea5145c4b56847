"""A real Envoy as a process: before bridges, or before Temporal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import yaml

from tests.free_ports import free_port
from tests.system.envoy.proxy import envoy
from tests.system.temporal.stage import Process, eventually

EXAMPLE = Path(__file__).parents[3] / "deploy" / "envoy-temporal.yaml"


class EnvoyProcess(Process):
    def __init__(self, folder: Path, configuration: dict[str, Any], port: int) -> None:
        program = envoy()
        if program is None:
            pytest.skip("there is no wheel of Envoy for this platform")
        admin_port = free_port()
        configuration["admin"] = {"address": socket_address(f"127.0.0.1:{admin_port}")}
        file = folder / "envoy.json"  # Envoy reads JSON as YAML
        file.write_text(json.dumps(configuration))
        command = [str(program), "-c", str(file), "--disable-hot-restart", "--concurrency", "1"]
        super().__init__([*command, "-l", "warning", "--log-path", str(folder / "envoy.log")], folder)
        self.address = f"127.0.0.1:{port}"
        self._admin = f"http://127.0.0.1:{admin_port}"
        eventually(lambda: self._ask("/ready"), "Envoy does not start")

    def _ask(self, path: str) -> str:
        try:
            with urlopen(self._admin + path, timeout=10) as answer:
                text: str = answer.read().decode()
                return text
        except (URLError, ConnectionError):
            return ""

    def healthy(self) -> int:
        """How many hosts behind it are healthy."""
        [cluster] = json.loads(self._ask("/clusters?format=json"))["cluster_statuses"]
        states = [host["health_status"] for host in cluster.get("host_statuses", ())]
        return sum(set(state) == {"eds_health_status"} for state in states)


def before_bridges(port: int, bridges: list[str]) -> dict[str, Any]:
    """The example for several bridges, with other addresses."""
    whole: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    [listener], [cluster] = whole["static_resources"]["listeners"], whole["static_resources"]["clusters"]
    listener["address"] = socket_address(f"127.0.0.1:{port}")
    [group] = cluster["load_assignment"]["endpoints"]
    group["lb_endpoints"] = [{"endpoint": {"address": socket_address(bridge)}} for bridge in bridges]
    return whole


def before_temporal(port: int, temporal: str, tls: Path, api_key: str) -> dict[str, Any]:
    """Temporal as its cloud is reached: over TLS, by clients with a certificate and an API key only. `tls`: a folder with the
    certificate, and the authority that signs clients."""
    whole = before_bridges(port, [temporal])
    [listener] = whole["static_resources"]["listeners"]
    [chain] = listener["filter_chains"]
    chain["transport_socket"] = {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            "require_client_certificate": True,
            "common_tls_context": {
                "alpn_protocols": ["h2"],
                "tls_certificates": [
                    {
                        "certificate_chain": {"filename": str(tls / "server.pem")},
                        "private_key": {"filename": str(tls / "server.key")},
                    }
                ],
                "validation_context": {"trusted_ca": {"filename": str(tls / "ca.pem")}},
            },
        },
    }
    [route] = chain["filters"][0]["typed_config"]["route_config"]["virtual_hosts"][0]["routes"]
    route["match"]["headers"] = [
        {"name": "authorization", "string_match": {"exact": f"Bearer {api_key}"}},
    ]
    refused = {"match": {"prefix": "/"}, "direct_response": {"status": 401}}
    chain["filters"][0]["typed_config"]["route_config"]["virtual_hosts"][0]["routes"] = [route, refused]
    return whole


def socket_address(address: str) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    return {"socket_address": {"address": host, "port_value": int(port)}}
