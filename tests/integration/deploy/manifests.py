"""The parsed deployment examples in deploy/."""

from __future__ import annotations

import re
import shlex
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).resolve().parents[3] / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MANIFESTS = sorted(
    set((DEPLOY / "kubernetes").glob("*.yaml")) - {DEPLOY / "kubernetes" / "kustomization.yaml"}
)
CONTAINERFILE = (DEPLOY / "Containerfile").read_text(encoding="utf-8")
SUPERVISED = (DEPLOY / "supervised" / "Containerfile").read_text(encoding="utf-8")


def objects() -> list[dict[str, Any]]:
    return [
        found
        for path in MANIFESTS
        for found in yaml.safe_load_all(path.read_text(encoding="utf-8"))
        if found is not None
    ]


def of_kind(*kinds: str) -> list[dict[str, Any]]:
    return [found for found in objects() if found["kind"] in kinds]


def pods() -> dict[str, dict[str, Any]]:
    """Return the pod templates by the name of their controller."""
    return {
        found["metadata"]["name"]: found["spec"]["template"] for found in of_kind("StatefulSet", "Deployment")
    }


def container(pod: dict[str, Any]) -> dict[str, Any]:
    [only] = pod["spec"]["containers"]
    found: dict[str, Any] = only
    return found


def unit(path: Path) -> RawConfigParser:
    # systemd allows repeated keys; in our files they would be a mistake.
    parser = RawConfigParser(strict=True, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keep the case of names
    parser.read_string(path.read_text(encoding="utf-8"))
    return parser


def commands() -> dict[str, list[str]]:
    """Return the arguments of `liveness` by the file that contains them."""
    found = {}
    for path in UNITS:
        program, *arguments = shlex.split(unit(path)["Service"]["ExecStart"])
        assert program == "/opt/liveness/bin/liveness"
        found[path.name] = arguments
    found |= {name: container(pod)["args"] for name, pod in pods().items()}
    for name, text in (("Containerfile", CONTAINERFILE), ("supervised/Containerfile", SUPERVISED)):
        [words] = re.findall(r"^CMD \[(.*)\]$", text, re.MULTILINE)
        found[name] = re.findall(r'"([^"]*)"', words)
    return found


def variables() -> dict[str, dict[str, str]]:
    """Return our variables by file. A value that comes from another source is empty."""
    found: dict[str, dict[str, str]] = {
        name: {each["name"]: each.get("value", "") for each in container(pod)["env"]}
        for name, pod in pods().items()
    }
    found["Containerfile"] = dict(re.findall(r"^(?:ENV|   ) *([A-Z_]+)=(\S+)", CONTAINERFILE, re.MULTILINE))
    return {
        where: {name: value for name, value in each.items() if name.startswith("LIVENESS_")}
        for where, each in found.items()
    }
