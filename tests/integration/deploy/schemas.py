"""Schemas of files in deploy/ that no package brings: as much of each format as our files use, so that a misspelt key is an error."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
STRING: Schema = {"type": "string", "minLength": 1}
STRINGS: Schema = {"type": "array", "items": STRING, "minItems": 1}
DURATION: Schema = {"type": "string", "pattern": r"^(\d+(ms|s|m|h))+$"}


def closed(properties: dict[str, Schema], *required: str) -> Schema:
    """An object with these keys and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def mapping(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


SECRET_KEY = closed({"name": STRING, "key": STRING}, "name", "key")
METADATA = closed({"name": STRING, "labels": mapping(STRING)}, "name")

SERVICE_MONITOR = closed(
    {
        "apiVersion": {"const": "monitoring.coreos.com/v1"},
        "kind": {"const": "ServiceMonitor"},
        "metadata": METADATA,
        "spec": closed(
            {
                "selector": closed({"matchLabels": mapping(STRING)}, "matchLabels"),
                "endpoints": {
                    "type": "array",
                    "minItems": 1,
                    "items": closed(
                        {
                            "port": STRING,
                            "path": {"type": "string", "pattern": "^/"},
                            "scheme": {"enum": ["http", "https"]},
                            "interval": DURATION,
                            "scrapeTimeout": DURATION,
                            "authorization": closed(
                                {"type": STRING, "credentials": SECRET_KEY}, "credentials"
                            ),
                            "tlsConfig": closed(
                                {"serverName": STRING, "ca": closed({"secret": SECRET_KEY}, "secret")}, "ca"
                            ),
                        },
                        "port",
                    ),
                },
            },
            "selector",
            "endpoints",
        ),
    },
    "apiVersion",
    "kind",
    "metadata",
    "spec",
)

KUSTOMIZATION = closed(
    {
        "apiVersion": {"enum": ["kustomize.config.k8s.io/v1beta1", "kustomize.config.k8s.io/v1alpha1"]},
        "kind": {"enum": ["Kustomization", "Component"]},
        "resources": STRINGS,
    },
    "apiVersion",
    "kind",
    "resources",
)

_COMPOSE_SERVICE = closed(
    {
        "image": STRING,
        "build": closed({"context": STRING, "dockerfile": STRING}, "context"),
        "profiles": STRINGS,
        "restart": {"enum": ["always", "unless-stopped", "on-failure", "no"]},
        "depends_on": mapping(
            closed({"condition": {"enum": ["service_started", "service_healthy"]}}, "condition")
        ),
        "environment": mapping({"type": "string"}),
        "entrypoint": STRINGS,
        "command": STRINGS,
        "working_dir": STRING,
        "volumes": {"type": "array", "items": {"type": "string", "pattern": r"^[^:]+:/[^:]*(:ro)?$"}},
        "secrets": STRINGS,
        "networks": STRINGS,
        "ports": {"type": "array", "items": {"type": "string", "pattern": r"^127\.0\.0\.1:\d+:\d+$"}},
        "stop_grace_period": DURATION,
        "read_only": {"type": "boolean"},
        "cap_drop": {"const": ["ALL"]},
        "security_opt": {"const": ["no-new-privileges:true"]},
        "healthcheck": closed(
            {
                "test": STRINGS,
                "interval": DURATION,
                "timeout": DURATION,
                "retries": {"type": "integer", "minimum": 1},
            },
            "test",
        ),
    },
    "image",
    "restart",
    "networks",
    "security_opt",
)

COMPOSE = {
    **closed(
        {
            "name": STRING,
            "services": mapping(_COMPOSE_SERVICE),
            "networks": mapping(closed({})),
            "volumes": mapping(closed({})),
            "secrets": mapping(closed({"file": STRING}, "file")),
        },
        "name",
        "services",
    ),
    "patternProperties": {"^x-": {}},
}
