"""Signing in to the dashboard: a person shows a token once, and the browser keeps a session in a cookie that no script reads."""

from __future__ import annotations

from typing import Any

import grpc
import msgspec
from google.protobuf.message import Message
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response

from liveness.clock import Clock
from liveness.domain.errors import InvalidField
from liveness.http.app import PathHandlers, json_response
from liveness.http.body_reader import BodyReader
from liveness.http.errors import from_rpc_error
from liveness.http.grpc_client import DEFAULT_TIMEOUT_S, GrpcClient
from liveness.http.guard import check_content_type
from liveness.http.json_output import json_bytes, to_json_value
from liveness.http.session_cookie import cookies_of, delete_cookie, set_cookie
from liveness.v1 import admin_pb2, token_pb2

BODY_BYTES_MAX = 4096
TOKEN_CHARS_MAX = 1000
_METHODS = admin_pb2.DESCRIPTOR.services_by_name["AdminService"].methods_by_name


class _SignInBody(msgspec.Struct, forbid_unknown_fields=True):
    token: str


class _SignOutBody(msgspec.Struct, forbid_unknown_fields=True):
    everywhere: bool = False


class SignIn:
    def __init__(self, grpc_client: GrpcClient, body_reader: BodyReader, clock: Clock) -> None:
        self._grpc_client = grpc_client
        self._body_reader = body_reader
        self._clock = clock

    def handlers(self) -> PathHandlers:
        return {
            "/auth/session": {"GET": self._session},
            "/auth/sign-in": {"POST": self._sign_in},
            "/auth/sign-out": {"POST": self._sign_out},
        }

    async def _session(self, request: Request) -> Response:
        """Who is signed in. `authenticated` is false if the server asks nobody."""
        answer = await self._call("WhoAmI", token_pb2.WhoAmIRequest(), request.headers)
        return json_response(json_bytes(to_json_value(answer)))

    async def _sign_in(self, request: Request) -> Response:
        body = await self._body(request, _SignInBody, "token", 'must be given as {"token": "lvt_…"}')
        token = body.token.strip()
        if not (token.isascii() and token.isprintable() and 0 < len(token) <= TOKEN_CHARS_MAX):
            raise InvalidField(field="token", rule="must be a token, which begins with lvt_")
        session = await self._call("CreateSession", token_pb2.CreateSessionRequest(), _bearer(token))
        # A session that somebody else may have planted in this browser, or left there, must not live on.
        for earlier in cookies_of(request.headers):
            await self._end(_bearer(earlier), token_pb2.EndSessionRequest())
        expires_ms = session.expire_time.ToMilliseconds()
        answer = {"principal": session.principal, "expire_time": to_json_value(session)["expire_time"]}
        max_age_s = max(0, expires_ms - self._clock.wall_ms()) // 1_000
        return json_response(
            json_bytes(answer), headers={"Set-Cookie": set_cookie(session.secret, max_age_s)}
        )

    async def _sign_out(self, request: Request) -> Response:
        """Answers also if the session was over before: the browser is to forget it in any case."""
        body = await self._body(
            request, _SignOutBody, "everywhere", 'must be true or false, as in {"everywhere": true}'
        )
        ended = await self._end(request.headers, token_pb2.EndSessionRequest(everywhere=body.everywhere))
        return json_response(json_bytes({"ended": ended}), headers={"Set-Cookie": delete_cookie()})

    async def _end(self, headers: Headers, request: token_pb2.EndSessionRequest) -> int:
        try:
            call = self._grpc_client.start_call(_METHODS["EndSession"], request, headers, DEFAULT_TIMEOUT_S)
            return int((await call).ended)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                return 0
            raise from_rpc_error(error) from error

    async def _call(self, method: str, request: Message, headers: Headers) -> Any:
        try:
            return await self._grpc_client.start_call(_METHODS[method], request, headers, DEFAULT_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error

    async def _body(self, request: Request, kind: Any, field: str, rule: str) -> Any:
        """Errors do not repeat the body, which may contain a token."""
        check_content_type(request.headers)
        async with self._body_reader.read(request, BODY_BYTES_MAX) as body:
            try:
                return msgspec.json.decode(body or b"{}", type=kind)
            except (ValueError, RecursionError, msgspec.MsgspecError):
                raise InvalidField(field=field, rule=rule) from None


def _bearer(credential: str) -> Headers:
    return Headers({"authorization": f"Bearer {credential}"})
