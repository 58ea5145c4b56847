"""LivenessService: handlers translate messages; shards and the domain decide."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from random import Random
from sys import intern

from liveness.clock import stopwatch
from liveness.cluster.quotas import Quotas, RoomNeeded
from liveness.domain.commands import Deactivate
from liveness.domain.errors import (
    InvalidField,
    LivenessError,
    MalformedRequest,
    PageTokenInvalid,
    ShardMoved,
    ShuttingDown,
    Unavailable,
    WorkerQuotaExceeded,
)
from liveness.domain.keys import WorkerKey, namespace_seed, shard_from_seed, shard_of
from liveness.domain.policy import Policy
from liveness.domain.worker import InactiveReason, Worker, WorkerState
from liveness.engine.committer import CommitGroup
from liveness.engine.node import Node
from liveness.engine.shard import HeartbeatOutcome, Shard
from liveness.security.principal import caller_name, item_principals
from liveness.security.redaction import redact_error
from liveness.server import tokens, wire
from liveness.server.all_nodes import AllNodes
from liveness.server.attach_streams import AttachStreams
from liveness.server.death_handlers import DeathHandlers
from liveness.server.event_feed import EventFeed, EventSelection
from liveness.server.rate_limits import RateLimits
from liveness.server.reply_builders import ItemReplyBuilder, ReplyBuilder, refused_item
from liveness.server.validation import optional_identifier, page_size, require_identifier, text
from liveness.slices import SLICE_US, build_in_slices, end_slice, in_slices
from liveness.store.api import WorkerRow
from liveness.telemetry.telemetry import Telemetry
from liveness.v1 import cluster_pb2, death_pb2, service_pb2, worker_pb2
from liveness.version import VERSION

HEARTBEATS_PER_CALL_MAX = 1_000
DECISION_US = 60
"""The estimated processor time of a heartbeat that does not take the short path, in microseconds, apart from its contents."""
BYTES_PER_US = 3
"""The same for its contents: lists of short elements cost most."""
REFUSALS_PER_SLICE = 100
API_LEVEL = 2
"""1: heartbeats and queries. 2: activities, streams."""
API_LEVEL_MIN = 1
REPEATED = HeartbeatOutcome.REPEATED
OnDecided = Callable[[Sequence[int]], None]
ADMIT_ATTEMPTS_MAX = 10
"""How often a registration asks for a quota slot that other registrations take first, before it is refused."""


class LivenessService:
    def __init__(
        self,
        node: Node,
        feed: EventFeed,
        streams: AttachStreams,
        random: Random,
        telemetry: Telemetry,
        quotas: Quotas | None = None,
        all_nodes: AllNodes | None = None,
        *,
        listener: str = "",
    ) -> None:
        """`listener`: what takes calls in: edge or python."""
        self._listener = listener
        self._node = node
        self._telemetry = telemetry
        self._all_nodes = all_nodes
        self._quotas = quotas or Quotas(node)
        self._feed = feed
        self._streams = streams
        self._reply_builders = ReplyBuilder(random), ReplyBuilder(random, paused=True)
        self._item_reply_builders = ItemReplyBuilder(random), ItemReplyBuilder(random, paused=True)
        self._death_handlers = DeathHandlers(node)
        self.rate_limits = RateLimits(node.clock, lambda: len(node.shards()) / node.shard_count)

    async def record_worker_heartbeat(self, request: service_pb2.RecordWorkerHeartbeatRequest) -> bytes:
        """Returns a serialized HeartbeatResult."""
        if not request.HasField("heartbeat"):
            raise InvalidField(field="heartbeat", rule="must be set")
        elapsed_s = stopwatch()
        [answer] = await self._record(request.namespace, (request.heartbeat,), self._reply_builders)
        self._telemetry.record_heartbeats(request.namespace, 1, elapsed_s())
        if isinstance(answer, LivenessError):
            self._telemetry.record_refusals(request.namespace, (answer,))
            raise answer
        return answer

    async def record_single_heartbeats(
        self,
        namespace: str,
        beats: Sequence[worker_pb2.WorkerHeartbeat],
        principals: Sequence[str],
        on_decided: OnDecided,
    ) -> list[bytes | LivenessError]:
        """Serve calls of `record_worker_heartbeat` that came at the same time. Returns a serialized HeartbeatResult or the error
        of each. `on_decided`: called before answers wait to be durable, with the places of those that
        `admit_single_heartbeats` must serve; their answers are `RoomNeeded`."""
        elapsed_s = stopwatch()
        answers = await self._record(
            namespace, beats, self._reply_builders, principals=principals, admits=False, on_decided=on_decided
        )
        served = [answer for answer in answers if not isinstance(answer, RoomNeeded)]
        self._count_single_heartbeats(namespace, served, elapsed_s())
        return answers

    async def admit_single_heartbeats(
        self, namespace: str, beats: Sequence[worker_pb2.WorkerHeartbeat], principals: Sequence[str]
    ) -> list[bytes | LivenessError]:
        """Serve those for which `record_single_heartbeats` found no room."""
        elapsed_s = stopwatch()
        answers = await self._admit_and_record(
            namespace, beats, self._reply_builders, ADMIT_ATTEMPTS_MAX, principals
        )
        self._count_single_heartbeats(namespace, answers, elapsed_s())
        return answers

    def _count_single_heartbeats(
        self, namespace: str, answers: Sequence[bytes | LivenessError], seconds: float
    ) -> None:
        self._telemetry.record_single_heartbeats(namespace, len(answers), seconds)
        if errors := [answer for answer in answers if isinstance(answer, LivenessError)]:
            self._telemetry.record_refusals(namespace, errors)

    async def record_worker_heartbeats(self, request: service_pb2.RecordWorkerHeartbeatsRequest) -> bytes:
        """Returns a serialized RecordWorkerHeartbeatsResponse."""
        if len(request.heartbeats) > HEARTBEATS_PER_CALL_MAX:
            raise InvalidField(field="heartbeats", rule=f"must be at most {HEARTBEATS_PER_CALL_MAX} per call")
        elapsed_s = stopwatch()
        answers = await self._record(request.namespace, request.heartbeats, self._item_reply_builders)
        self._telemetry.record_heartbeats(request.namespace, len(answers), elapsed_s())
        try:
            return b"".join(answers)  # type: ignore[arg-type]
        except TypeError:  # some were refused
            errors = [answer for answer in answers if isinstance(answer, LivenessError)]
            self._telemetry.record_refusals(request.namespace, errors)
            self._telemetry.record_refused_items(request.namespace, errors)
            return b"".join(
                [
                    refused_item(redact_error(answer)) if isinstance(answer, LivenessError) else answer
                    async for answer in in_slices(answers, REFUSALS_PER_SLICE)
                ]
            )

    async def _record(
        self,
        namespace: str,
        beats: Sequence[worker_pb2.WorkerHeartbeat],
        reply_builders: tuple[ReplyBuilder, ReplyBuilder],
        attempts_left: int = ADMIT_ATTEMPTS_MAX,
        principals: Sequence[str] | None = None,
        admits: bool = True,
        on_decided: OnDecided | None = None,
    ) -> list[bytes | LivenessError]:
        """Decide all heartbeats, wait until they are durable, then answer. `principals`: who sent each of them; None: the
        caller sent them all. `admits=False`: answer `RoomNeeded` for new workers that need a slot, undecided.

        Heartbeats that cost much are decided in slices. Each slice reads time, policy and shards anew, because they may
        have changed, and has its own commit group, because the shards of an earlier slice may be lost before the next."""
        node = self._node
        require_identifier("namespace", namespace)
        if node.committer.is_full:
            await node.committer.wait_for_room()
        policy, seed, shard_table = node.policies.of(namespace), namespace_seed(namespace), node.shard_table()
        reply_builder = reply_builders[policy.paused]
        # A retry does not count the same heartbeat again.
        is_rate_limited = policy.has_rate_limits and attempts_left == ADMIT_ATTEMPTS_MAX
        admit, monotonic_ms = self.rate_limits.admit, node.clock.monotonic_ms()
        build_renewal = reply_builder.build_renewal
        listening_ms, wall_ms = node.listening.now_ms(), node.clock.wall_ms()
        shard_count = len(shard_table)
        if principals is None:
            principals = item_principals(len(beats))
        shards: list[Shard | None] = []
        answers: list[bytes | LivenessError] = []
        unadmitted: list[int] = []
        unadmitted_keys: dict[str, RoomNeeded] = {}
        slices: list[tuple[int, CommitGroup]] = []
        """The ends of the slices before the last, and the groups that make them durable."""
        slice_us = 0
        counters = (0, 0, 0)
        for beat, principal in zip(beats, principals, strict=True):
            if slice_us > SLICE_US:
                node.committer.note_decided(slice_us)
                slice_us = 0
                slices.append((len(answers), node.barrier()))
                await end_slice()
                await node.committer.wait_for_room()
                if node.is_closing:
                    answers += [ShuttingDown()] * (len(beats) - len(answers))
                    shards += [None] * (len(beats) - len(shards))
                    break
                policy, shard_table = node.policies.of(namespace), node.shard_table()
                reply_builder = reply_builders[policy.paused]
                build_renewal = reply_builder.build_renewal
                is_rate_limited = policy.has_rate_limits and attempts_left == ADMIT_ATTEMPTS_MAX
                monotonic_ms = node.clock.monotonic_ms()
                listening_ms, wall_ms = node.listening.now_ms(), node.clock.wall_ms()
            instance_key = beat.worker_instance_key
            shard_id = shard_from_seed(seed, instance_key, shard_count)
            shard = shard_table[shard_id]
            shards.append(shard)
            if shard is None:
                answers.append(node.unavailable_reason(shard_id))
                continue
            try:
                key = (namespace, instance_key)
                if is_rate_limited:
                    if key not in shard.workers:  # only valid keys get a rate bucket
                        require_identifier("heartbeat.worker_instance_key", instance_key)
                    admit(key, policy, monotonic_ms)
                if unadmitted and instance_key in unadmitted_keys:
                    # Its earlier heartbeat waits, and there may be room by now: this one must not overtake it.
                    unadmitted.append(len(answers))
                    answers.append(unadmitted_keys[instance_key])
                    continue
                sequence, successes, errors = counters = wire.pop_counters(beat)
                content = beat.SerializePartialToString()
                # Another principal's copy of the same heartbeat does not take the short path.
                fingerprint = hash((principal, content))
                worker = shard.renew_unchanged(
                    key, fingerprint, sequence, successes, errors, listening_ms, wall_ms
                )
                if worker is not None:
                    answers.append(build_renewal(worker, wall_ms))
                else:
                    known = shard.workers.get(key)  # type: ignore[call-overload]
                    lost_max = 0 if known is None else len(known.bindings)
                    slice_us += DECISION_US + len(content) // BYTES_PER_US + lost_max
                    now_ms = shard.observed_ms_at(listening_ms)
                    outcome, worker = self._decide(
                        shard, key, beat, counters, policy, now_ms, wall_ms, fingerprint, principal
                    )
                    answers.append(reply_builder.build(outcome, worker, now_ms, wall_ms))
            except LivenessError as error:
                if isinstance(error, RoomNeeded):
                    wire.restore_counters(beat, counters)
                    unadmitted.append(len(answers))
                    unadmitted_keys[instance_key] = error
                elif isinstance(error, ShardMoved):
                    wire.restore_counters(beat, counters)  # forwarded to the new owner unchanged
                answers.append(error)
        if slice_us:
            node.committer.note_decided(slice_us)
        if on_decided is not None:
            on_decided(unadmitted)
        if not admits:
            if len(unadmitted) == len(answers):
                return answers  # nothing was decided
            unadmitted = []
        if len(unadmitted) == len(answers) > 0 and attempts_left:
            return await self._admit_and_record(namespace, beats, reply_builders, attempts_left, principals)
        start = 0
        for end, group in (*slices, (len(answers), node.barrier())):
            await group.wait()
            if group.lost:
                # An error, too, may rest on state that was to be committed with the group; a full quota, on any shard
                # of it.
                for index in range(start, end):
                    shard = shards[index]
                    if not admits and isinstance(answers[index], RoomNeeded):
                        continue  # nothing of it was decided
                    if shard is not None and (
                        group.failed(shard) or isinstance(answers[index], WorkerQuotaExceeded)
                    ):
                        answers[index] = node.commit_failure(shard.id)
            start = end
        if unadmitted and attempts_left:
            retried = await self._admit_and_record(
                namespace,
                [beats[index] for index in unadmitted],
                reply_builders,
                attempts_left,
                [principals[index] for index in unadmitted],
            )
            for index, answer in zip(unadmitted, retried, strict=True):
                answers[index] = answer
        return answers

    async def _admit_and_record(
        self,
        namespace: str,
        beats: Sequence[worker_pb2.WorkerHeartbeat],
        reply_builders: tuple[ReplyBuilder, ReplyBuilder],
        attempts_left: int,
        principals: Sequence[str],
    ) -> list[bytes | LivenessError]:
        """Acquire quota slots for new workers, then record their heartbeats."""
        policy, shard_count = self._node.policies.of(namespace), self._node.shard_count
        needed = [shard_of(namespace, beat.worker_instance_key, shard_count) for beat in beats]
        try:
            await self._quotas.acquire_slots(needed, namespace, policy)
        except WorkerQuotaExceeded:
            pass  # some may fit nevertheless; the others are refused one by one
        except Unavailable as error:
            return [error] * len(beats)
        return await self._record(namespace, beats, reply_builders, attempts_left - 1, principals)

    def _decide(
        self,
        shard: Shard,
        key_parts: tuple[str, str],
        beat: worker_pb2.WorkerHeartbeat,
        counters: tuple[int, int, int],
        policy: Policy,
        now_ms: int,
        wall_ms: int,
        fingerprint: int,
        principal: str,
    ) -> tuple[HeartbeatOutcome, Worker]:
        key = WorkerKey(*key_parts)
        known = shard.workers.get(key)
        if known is None:
            require_identifier("heartbeat.worker_instance_key", key.instance_key)
            # All workers of a namespace share one string.
            key = WorkerKey(intern(key.namespace), key.instance_key)
        command = wire.heartbeat(beat, counters, policy, known, principal)
        outcome, worker = shard.heartbeat(
            key, command, now_ms, wall_ms, self._quotas.admit, self.rate_limits.admit_session
        )
        if outcome is not REPEATED:  # a repeated heartbeat was not applied, and its content may differ
            is_same_session = command.session_id == worker.session_id
            shard.remember_fingerprint(
                worker, fingerprint if command.is_plain_renewal and is_same_session else None
            )
        return outcome, worker

    async def attach(
        self, requests: AsyncIterator[service_pb2.AttachRequest | MalformedRequest]
    ) -> AsyncIterator[service_pb2.AttachResponse]:
        async for response in self._streams.attach(requests):
            yield response

    def relay(
        self, requests: AsyncIterator[cluster_pb2.RelayRequest | MalformedRequest]
    ) -> AsyncIterator[cluster_pb2.RelayResponse]:
        """Attach, for clients that are connected to another node or a frontend."""
        return self._streams.relay(requests)

    async def get_server_info(
        self, request: service_pb2.GetServerInfoRequest
    ) -> service_pb2.GetServerInfoResponse:
        if request.namespace:
            require_identifier("namespace", request.namespace)
        return service_pb2.GetServerInfoResponse(
            version=VERSION,
            api_level=API_LEVEL,
            api_level_min=API_LEVEL_MIN,
            shard_count=self._node.shard_count,
            listener=self._listener,
        )

    async def shutdown_worker(
        self, request: service_pb2.ShutdownWorkerRequest
    ) -> service_pb2.ShutdownWorkerResponse:
        key = wire.worker_key(request.namespace, request.worker_instance_key)
        shard = self._node.shard(*key)
        command = Deactivate(
            InactiveReason.SHUTDOWN,
            text("reason", request.reason),
            self._node.policies.of(key.namespace),
            optional_identifier("session_id", request.session_id),
            caller_name(),
        )
        worker, moved = shard.deactivate(key, command)
        await self._node.wait_durable(shard)
        return service_pb2.ShutdownWorkerResponse(state=worker.state, rescheduled_activities=moved)  # type: ignore[arg-type]

    async def describe_worker(
        self, request: service_pb2.DescribeWorkerRequest
    ) -> service_pb2.DescribeWorkerResponse:
        key = wire.worker_key(request.namespace, request.worker_instance_key)
        shard = self._node.shard(*key)
        worker = shard.describe(key)
        await self._node.wait_durable(shard)
        message = wire.worker_message(
            key, worker, self._worker_context(key, worker, shard), include_activities=True
        )
        return service_pb2.DescribeWorkerResponse(worker=message)

    def _worker_context(self, key: WorkerKey, worker: Worker, shard: Shard) -> wire.WorkerContext:
        hold = self._node.throttle.hold_of(key)
        return wire.WorkerContext(
            shard.id,
            shard.now_ms(),
            self._node.clock.wall_ms(),
            paused=bool(self._node.policies.of(key.namespace).paused),
            attached=self._streams.is_attached(key, worker.session_id),
            disconnected=key in shard.disconnected,
            lease_end_ms=shard.lease_deadlines.lease_end_ms(key, worker) if key in shard.disconnected else 0,
            held_until_ms=hold.until_ms if hold is not None else 0,
        )

    async def list_workers(self, request: service_pb2.ListWorkersRequest) -> service_pb2.ListWorkersResponse:
        namespace = require_identifier("namespace", request.namespace)
        worker_filter = wire.worker_filter(request.filter)
        size = page_size(request.page_size)
        listing = ("workers", namespace, worker_filter)
        after = (
            tokens.redeem(request.page_token, tokens.Key, PageTokenInvalid, *listing)
            if request.page_token
            else None
        )
        rows = await self._node.store.list_workers(namespace, worker_filter, after, size + 1)
        listed = rows[:size]
        remote_rows = [row for row in listed if not self._node.serves(row.shard_id)]
        remote_workers = (
            await self._all_nodes.look_up_workers(namespace, remote_rows)
            if remote_rows and self._all_nodes
            else {}
        )

        def build(row: WorkerRow) -> worker_pb2.Worker:
            message = remote_workers.get(row.key.instance_key)
            # The row decides the state; the memory of the owner knows the present lease.
            if message is None or int(message.state) != int(row.worker.state):
                message = self._listed_worker_message(row)
            return message

        response = service_pb2.ListWorkersResponse(workers=await build_in_slices(listed, build))
        if listed and (len(rows) > size or rows.is_cut):
            response.next_page_token = tokens.issue(listed[-1].key.instance_key, *listing)
        await self._node.wait_all_durable()
        return response

    def _listed_worker_message(self, row: WorkerRow) -> worker_pb2.Worker:
        if not self._node.serves(row.shard_id):
            paused = bool(self._node.policies.of(row.key.namespace).paused)
            now_ms, wall_ms = self._node.observed_ms(row.shard_id), self._node.clock.wall_ms()
            context = wire.WorkerContext(row.shard_id, now_ms, wall_ms, paused=paused)
            message = wire.worker_message(row.key, row.worker, context, include_activities=False)
            if row.worker.state is WorkerState.ACTIVE:
                # Renewals do not write the row; only the owner of the shard knows the last one.
                message.ClearField("last_heartbeat_time")
            return message
        shard = self._node.shard_by_id(row.shard_id)
        live, worker = shard.workers.get(row.key), row.worker
        if live is not None and live.state is worker.state:
            worker = live
        elif live is not None and live.epoch == worker.epoch:
            # The lease has ended, which is not durable yet; its heartbeats are.
            worker = worker._replace(renewed_ms=live.renewed_ms, wall_offset_ms=live.wall_offset_ms)
        return wire.worker_message(
            row.key, worker, self._worker_context(row.key, worker, shard), include_activities=False
        )

    async def look_up_workers(self, keys: Iterable[WorkerKey]) -> list[worker_pb2.Worker]:
        """Returns the present state of workers of this node, for a list that another node builds."""

        def build(key: WorkerKey) -> worker_pb2.Worker:
            shard = self._node.shard(*key)
            worker = shard.workers.get(key)
            if worker is None:
                return worker_pb2.Worker()
            context = self._worker_context(key, worker, shard)
            return wire.worker_message(key, worker, context, include_activities=False)

        found = await build_in_slices(keys, build)
        await self._node.wait_all_durable()
        return [message for message in found if message.worker_instance_key]

    async def count_workers(
        self, request: service_pb2.CountWorkersRequest
    ) -> service_pb2.CountWorkersResponse:
        namespace = require_identifier("namespace", request.namespace)
        counts = await self._node.store.count_workers(namespace, wire.worker_filter(request.filter))
        response = service_pb2.CountWorkersResponse(total=sum(counts.values()))
        for state in sorted(counts):
            response.groups.add(state=state, count=counts[state])
        return response

    async def get_worker_history(
        self, request: service_pb2.GetWorkerHistoryRequest
    ) -> service_pb2.GetWorkerHistoryResponse:
        key = wire.worker_key(request.namespace, request.worker_instance_key)
        shard_id = shard_of(*key, self._node.shard_count)
        size = page_size(request.page_size)
        listing = ("history", *key, request.newest_first)
        beyond_seq = (
            tokens.redeem(request.page_token, tokens.Sequence, PageTokenInvalid, *listing)
            if request.page_token
            else None
        )
        entries = await self._node.store.worker_history(
            key, shard_id, newest_first=request.newest_first, beyond_seq=beyond_seq, limit=size + 1
        )
        if not entries and beyond_seq is None:
            self._node.shard_by_id(shard_id).describe(key)
        listed = entries[:size]
        response = service_pb2.GetWorkerHistoryResponse(
            events=await build_in_slices(listed, partial(wire.event_message, shard_id))
        )
        if listed and (len(entries) > size or entries.is_cut):
            response.next_page_token = tokens.issue(listed[-1].seq, *listing)
        return response

    async def get_death_certificate(
        self, request: service_pb2.GetDeathCertificateRequest
    ) -> death_pb2.DeathCertificate:
        return await self._death_handlers.get_certificate(request)

    async def list_recent_events(
        self, request: service_pb2.ListRecentEventsRequest
    ) -> service_pb2.ListRecentEventsResponse:
        namespace = optional_identifier("namespace", request.namespace) or None
        found = await self._node.store.recent_events(namespace, page_size(request.page_size))
        return service_pb2.ListRecentEventsResponse(
            events=await build_in_slices(found, lambda item: wire.event_message(*item))
        )

    async def watch_events(
        self, request: service_pb2.WatchEventsRequest
    ) -> AsyncIterator[service_pb2.WatchEventsResponse]:
        namespace = optional_identifier("namespace", request.namespace) or None
        worker = optional_identifier("worker_instance_key", request.worker_instance_key) or None
        if worker is not None and namespace is None:
            raise InvalidField(field="namespace", rule="must be set when worker_instance_key is")
        selection = EventSelection(namespace, worker)
        async for batch in self._feed.watch(selection, request.resume_token, request.from_beginning):
            yield service_pb2.WatchEventsResponse(
                events=await build_in_slices(batch.entries, partial(wire.event_message, batch.shard_id)),
                resume_token=batch.resume_token,
            )
