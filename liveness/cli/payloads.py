"""Inputs and results on the command line: how texts and files are encoded, and payloads decoded."""

from __future__ import annotations

import json
from typing import Any

from liveness.cli.output import payload_text, to_json
from liveness.v1.activity_pb2 import Activity

JSON = "json/plain"
TEXT = "text/plain"
BINARY = "binary/plain"
NULL = "binary/null"
NOT_NAMED = ""
READABLE = (JSON, TEXT, BINARY, NULL, NOT_NAMED)


def guess_encoding(content: bytes | None) -> str:
    """The encoding of an input that the user typed or put into a file."""
    if content is None:
        return NULL
    try:
        json.loads(content)
    except ValueError:  # neither JSON nor, if it is no UTF-8, text
        return TEXT if _is_text(content) else BINARY
    return JSON


def described_payload(payload: bytes, encoding: str) -> str:
    """A payload for people."""
    text = payload_text(payload)
    return text if encoding in READABLE else f"{text} (encoding {encoding})"


def activity_to_json(activity: Activity) -> dict[str, Any]:
    """Proto-JSON, in which payloads are Base64, with the JSON values of those payloads that hold one."""
    fields = to_json(activity)
    for name in ("input", "result"):
        payload, encoding = getattr(activity, name), getattr(activity, f"{name}_encoding")
        if encoding == TEXT and _is_text(payload):
            fields[f"{name}_value"] = payload.decode()
        elif encoding in (JSON, NOT_NAMED):
            try:
                fields[f"{name}_value"] = json.loads(payload)
            except ValueError:
                continue
    return fields


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
