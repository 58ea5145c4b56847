"""The OpenAPI document, generated from the proto files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor, ServiceDescriptor

from liveness.http.endpoints import WHOLE_BODY, Endpoint, endpoints_of
from liveness.http.fields import FieldPath, is_scalar, is_text_map
from liveness.http.json_output import json_bytes
from liveness.http.schemas import Schema, Schemas, comment_of
from liveness.http.static_files import StaticFile
from liveness.http.worker_paths import PATHS
from liveness.v1 import (
    activity_pb2,
    admin_pb2,
    component_metrics_service_pb2,
    component_service_pb2,
    progress_service_pb2,
    registry_service_pb2,
    schedule_service_pb2,
    service_pb2,
)
from liveness.version import VERSION

SERVICES: tuple[ServiceDescriptor, ...] = (
    service_pb2.DESCRIPTOR.services_by_name["LivenessService"],
    activity_pb2.DESCRIPTOR.services_by_name["ActivityService"],
    component_service_pb2.DESCRIPTOR.services_by_name["ComponentService"],
    component_metrics_service_pb2.DESCRIPTOR.services_by_name["ComponentMetricsService"],
    registry_service_pb2.DESCRIPTOR.services_by_name["RegistryService"],
    progress_service_pb2.DESCRIPTOR.services_by_name["ProgressService"],
    schedule_service_pb2.DESCRIPTOR.services_by_name["ScheduleService"],
    admin_pb2.DESCRIPTOR.services_by_name["AdminService"],
)
"""The services that HTTP offers."""

DESCRIPTION = """\
The calls of liveness.v1 as JSON. Fields have their names in the proto files; requests may use lowerCamelCase, too. \
64-bit numbers are strings, durations are strings such as "30s", and bytes are base64. Unknown fields and parameters are refused.

A request that changes something needs the header Content-Type: application/json. \
X-Timeout (500ms, 5s, 2m) limits how long a call may take.

An error is {"error": {"code", "status", "message", "reason", "details"}}: code is the HTTP status, status the gRPC status, \
reason is machine-readable, and details are messages of google.rpc."""

ERROR: Schema = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "code": {"type": "integer", "description": "The HTTP status."},
                "status": {"type": "string", "description": "The name of the gRPC status."},
                "message": {"type": "string", "description": "For people."},
                "reason": {"type": "string", "description": "Machine-readable. Empty if there is none."},
                "details": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {"@type": {"type": "string"}},
                        "required": ["@type"],
                    },
                },
            },
            "required": ["code", "status", "message", "reason", "details"],
            "additionalProperties": False,
        }
    },
    "required": ["error"],
    "additionalProperties": False,
}
_ERROR_NAME = "Error"


def document() -> dict[str, Any]:
    endpoints = list(endpoints_of(SERVICES))
    schemas = Schemas(endpoint.method.input_type for endpoint in endpoints)
    paths: dict[str, Any] = {}
    seen: dict[str, int] = {}
    for endpoint in endpoints:
        seen[endpoint.method.name] = count = seen.get(endpoint.method.name, 0) + 1
        name = endpoint.method.name if count == 1 else f"{endpoint.method.name}_{count}"
        paths.setdefault(_template(endpoint), {})[endpoint.verb.lower()] = _operation(endpoint, name, schemas)
    for path in PATHS:
        operation = _operation(path.endpoint, path.name, schemas)
        operation |= {"summary": path.summary, "description": path.description, "tags": ["ComponentService"]}
        operation["responses"]["200"]["content"]["application/json"]["schema"] = path.answer
        if "requestBody" in operation:
            operation["requestBody"]["required"] = False
        paths[path.endpoint.template] = {path.endpoint.verb.lower(): operation}
    return {
        "openapi": "3.1.0",
        "info": {"title": "liveness", "version": VERSION, "description": DESCRIPTION},
        "servers": [{"url": "/"}],
        "tags": [
            {"name": service.name, "description": comment_of(service.full_name)} for service in SERVICES
        ],
        "paths": paths,
        "components": {"schemas": {_ERROR_NAME: ERROR, **dict(sorted(schemas.by_name.items()))}},
    }


def document_file() -> StaticFile:
    content = json_bytes(document())
    return StaticFile(content, "application/json", f'"{sha256(content).hexdigest()[:32]}"')


def _template(endpoint: Endpoint) -> str:
    """The path template with short names of variables, because many tools expect no dots there."""
    names = [path.leaf.name for path in endpoint.variables]
    assert len(set(names)) == len(names), f"{endpoint.template} has two variables of the same name"
    return "/" + "/".join(
        f"{{{segment.leaf.name}}}" if isinstance(segment, FieldPath) else segment
        for segment in endpoint.segments
    )


def _operation(endpoint: Endpoint, name: str, schemas: Schemas) -> dict[str, Any]:
    method = endpoint.method
    operation: dict[str, Any] = {
        "operationId": name,
        "summary": re.sub(r"(?<!^)(?=[A-Z])", " ", method.name).capitalize(),
        "tags": [method.containing_service.name],
    }
    if text := comment_of(method.full_name):
        operation["description"] = text
    parameters = [_parameter("path", path, schemas, required=True) for path in endpoint.variables] + [
        _parameter("query", path, schemas) for path in query_parameters(endpoint)
    ]
    if parameters:
        operation["parameters"] = parameters
    if endpoint.body:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _body_schema(endpoint, schemas)}},
        }
    operation["responses"] = {
        "200": _success_response(endpoint, schemas),
        "default": {
            "description": "The call was refused or failed.",
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{_ERROR_NAME}"}}},
        },
    }
    return operation


def _success_response(endpoint: Endpoint, schemas: Schemas) -> dict[str, Any]:
    schema = schemas.of_message(endpoint.method.output_type)
    if not endpoint.method.server_streaming:
        return {"description": "Done.", "content": {"application/json": {"schema": schema}}}
    return {
        "description": "Server-sent events. The data of each is JSON of the schema x-data; to resume after an event, send "
        "its id in the header Last-Event-ID.",
        "content": {"text/event-stream": {"schema": {"type": "string"}, "x-data": schema}},
    }


def _body_schema(endpoint: Endpoint, schemas: Schemas) -> Schema:
    request = endpoint.method.input_type
    if endpoint.body != WHOLE_BODY:
        return schemas.of_field(request.fields_by_name[endpoint.body])
    in_path = {path.fields[0].name for path in endpoint.variables}
    if not in_path:
        return schemas.of_message(request)
    return schemas.of_fields(request, (field for field in request.fields if field.name not in in_path))


def query_parameters(endpoint: Endpoint) -> Iterator[FieldPath]:
    """The fields that are set neither by the path nor by the body."""
    if endpoint.body == WHOLE_BODY:
        return
    covered = {str(path) for path in endpoint.variables} | {endpoint.body}
    for path in _leaves(endpoint.method.input_type, ()):
        if str(path) not in covered and path.fields[0].name != endpoint.body:
            yield path


def _leaves(message: Descriptor, parents: tuple[FieldDescriptor, ...]) -> Iterator[FieldPath]:
    for field in message.fields:
        if is_scalar(field) or is_text_map(field):
            yield FieldPath((*parents, field))
            continue
        nested = field.message_type
        if field.is_repeated or nested is None or any(each.containing_type is nested for each in parents):
            continue
        yield from _leaves(nested, (*parents, field))


def _parameter(location: str, path: FieldPath, schemas: Schemas, *, required: bool = False) -> dict[str, Any]:
    schema = schemas.of_field(path.leaf)
    name = path.leaf.name if location == "path" else str(path)
    parameter: dict[str, Any] = {"name": name, "in": location, "schema": schema}
    if is_text_map(path.leaf):
        parameter |= {"style": "deepObject", "explode": True}
    if required:
        parameter["required"] = True
        if schema.get("type") == "string":
            schema["minLength"] = 1
    if text := schema.pop("description", ""):
        parameter["description"] = text
    return parameter
