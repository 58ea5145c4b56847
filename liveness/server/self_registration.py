"""A node or a frontend registers itself as a component, in a namespace of its own.

It neither delays a start nor a stop, nor can it fail the process: the directory is for people.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from google.protobuf.duration_pb2 import Duration

from liveness.background import BackgroundTasks
from liveness.clock import Clock
from liveness.domain.errors import (
    Denied,
    LivenessError,
    NamespaceNotFound,
    RegistryEntryNotFound,
    SessionNotCurrent,
    SessionSuperseded,
)
from liveness.network_addresses import split_address
from liveness.routing.own_calls import OwnCalls
from liveness.security.grants import Grant, Role
from liveness.security.principal import Caller, Principal, current_caller
from liveness.store.errors import StoreError
from liveness.v1 import registry_service_pb2 as pb
from liveness.version import VERSION

logger = structlog.get_logger("liveness.registry")

NAMESPACE = "liveness"
INTERVAL_S = 15
RETRY_MS = (1_000, 15_000)
REFUSED_RETRY_MS = 300_000
"""After a refusal that lasts. Denied calls are counted and recorded, so there are few."""
GOODBYE_S = 1.0
_METHODS = pb.DESCRIPTOR.services_by_name["RegistryService"].methods_by_name
_LASTING = (Denied, NamespaceNotFound)
_REGISTER_AGAIN = (RegistryEntryNotFound, SessionSuperseded, SessionNotCurrent)


def own_component(
    kind: str, component: str, address: str, host: str, process_id: int, uri: str, **runtime: str
) -> pb.RegisterRequest:
    """`address`: where the process listens. Only one process can, so a process that is started again at the same address goes on
    under the same session."""
    name = f"{host}:{split_address(address)[1]}"
    return pb.RegisterRequest(
        namespace=NAMESPACE,
        worker_instance_key=f"{kind}:{name}",
        session_id=name,
        uri=uri,
        labels={"component": component},
        runtime_json=json.dumps({"version": VERSION, **{key: text for key, text in runtime.items() if text}}),
        expected_interval=Duration(seconds=INTERVAL_S),
        host_name=host,
        process_id=str(process_id),
    )


class SelfRegistration:
    def __init__(
        self,
        clock: Clock,
        calls: OwnCalls,
        components: Sequence[pb.RegisterRequest],
        *,
        service: Any = None,
        admit: Callable[[str], None] = lambda namespace: None,
        asks_callers: bool = False,
    ) -> None:
        """`service`: serves the calls whose shards this node owns; None in a frontend. `admit`: refuses a namespace that this node
        does not serve."""
        self._clock = clock
        self._calls = calls
        self._components = components
        self._service = service
        self._admit = admit
        self._asks_callers = asks_callers
        self._tasks = BackgroundTasks("self registration")
        self.registered: set[str] = set()
        """Keys of the components that were registered."""

    def start(self) -> None:
        for component in self._components:
            self._tasks.start(self._run(component))

    async def stop(self) -> None:
        """Say goodbye, if that takes no longer than a moment."""
        await self._tasks.close()
        leaving = [each for each in self._components if each.worker_instance_key in self.registered]
        if not leaving:
            return
        goodbyes = [asyncio.ensure_future(self._say_goodbye(each)) for each in leaving]
        _, late = await asyncio.wait(goodbyes, timeout=GOODBYE_S)
        for goodbye in late:
            goodbye.cancel()

    async def _run(self, component: pb.RegisterRequest) -> None:
        self._call_as_itself()
        beat = pb.HeartbeatRequest(
            namespace=component.namespace,
            worker_instance_key=component.worker_instance_key,
            session_id=component.session_id,
        )
        failures = 0
        request: Any = component
        while True:
            try:
                answer = await self._call(request)
            except _REGISTER_AGAIN:
                request = component
                wait_ms = RETRY_MS[0]
            except (LivenessError, StoreError) as error:
                if not failures:
                    key = component.worker_instance_key
                    logger.warning("this process is missing in the registry", component=key, why=str(error))
                wait_ms = min(RETRY_MS[0] << min(failures, 10), RETRY_MS[1])
                if isinstance(error, _LASTING):
                    wait_ms = REFUSED_RETRY_MS
                failures += 1
            else:
                failures = 0
                self.registered.add(component.worker_instance_key)
                request = beat
                wait_ms = answer.next_heartbeat_after.seconds * 1_000
            await self._clock.sleep(max(wait_ms, 1_000))

    async def _say_goodbye(self, component: pb.RegisterRequest) -> None:
        self._call_as_itself()
        request = pb.DeregisterRequest(
            namespace=component.namespace,
            worker_instance_key=component.worker_instance_key,
            session_id=component.session_id,
            reason="it stops",
        )
        try:
            await self._call(request)
        except (LivenessError, StoreError) as error:
            logger.debug("no goodbye in the registry", component=request.worker_instance_key, why=str(error))

    def _call_as_itself(self) -> None:
        """Each task has its own context."""
        if self._asks_callers:
            namespaces = dict.fromkeys(component.namespace for component in self._components)
            grants = {Grant(Role.WORKER, namespace): None for namespace in namespaces}
            current_caller.set(Caller(Principal("server:liveness", grants)))

    async def _call(self, request: Any) -> Any:
        self._admit(request.namespace)
        method = _METHODS[type(request).__name__.removesuffix("Request")]
        serve = None if self._service is None else getattr(self._service, method.name.lower())
        return await self._calls.call(method, request, serve)
