"""A hypothesis state machine: several workers compete for one activity, die, return and call late; a small
model of the promises checks every step."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from liveness.domain.activity import FINISHED_ACTIVITY_STATES, Activity, ActivityState, evolve
from liveness.domain.activity_decider import AttemptHolder
from liveness.domain.errors import LivenessError
from liveness.domain.events import (
    ActivityCancelled,
    ActivityCancelRequested,
    ActivityCompleted,
    ActivityFailed,
    ActivityMadeAvailable,
    ActivityStarted,
    ActivityTimedOut,
    AttemptEnded,
    Retry,
    TimeLimits,
)
from liveness.domain.policy import Policy
from liveness.domain.reactions import ActivityRescheduleTask
from tests.unit.domain.activity_model import ActivityModel, Verdict
from tests.unit.domain.activity_scenario import ID, VERIFY_AFTER_MS, ActivityScenario, task

WORKERS = ("red", "green", "blue")

workers = st.sampled_from(WORKERS)
some = st.sampled_from([0, 0, 0, 0, 1, 1, 2, 3, 5])
"""An index into the tokens or tasks so far, counted from the newest."""
twists = st.sampled_from(["", "", "", "worker", "epoch", "before", "after"])
# Retries are more likely than final ends, so that runs are long.
end_calls = st.sampled_from(["complete", "fail", "fail", "fail for good", "give back", "give back"])


class ActivityMachine(RuleBasedStateMachine):
    """The machine plays the workers and the caller of the decider. It knows each worker's lease and the
    attempt bound in it, and it refuses a token whose lease is over, because the decider leaves that check to
    its caller. Reschedules come from ended leases; the machine delivers them in any order, late and
    repeatedly."""

    @initialize(
        max_attempts=st.sampled_from([0, 0, 2, 4]),
        own_max_deaths=st.sampled_from([None, None, 0, 1, 2]),
        namespace_max_deaths=st.sampled_from([3, 3, 2, 0]),
        limits=st.builds(
            TimeLimits,
            schedule_to_close_ms=st.sampled_from([0, 0, 0, 150]),
            schedule_to_start_ms=st.sampled_from([0, 0, 40]),
            start_to_close_ms=st.sampled_from([0, 30]),
            heartbeat_ms=st.sampled_from([0, 20]),
        ),
    )
    def prepare(
        self,
        max_attempts: int,
        own_max_deaths: int | None,
        namespace_max_deaths: int,
        limits: TimeLimits,
    ) -> None:
        self.limits = limits
        self.retry = Retry(
            initial_ms=10, coefficient=2.0, max_ms=50, max_attempts=max_attempts, max_deaths=own_max_deaths
        )
        self.namespace_max_deaths = namespace_max_deaths
        self.epochs = dict.fromkeys(WORKERS, 1)
        self.away: set[str] = set()
        self.begin()

    def begin(self) -> None:
        policy = Policy(max_worker_deaths=self.namespace_max_deaths)
        self.scenario = ActivityScenario(self.retry, policy, self.limits)
        self.model = ActivityModel(self.retry, self.namespace_max_deaths, self.limits)
        self.bound: dict[str, AttemptHolder] = {}
        """The attempt bound to each worker in its live lease."""
        self.tokens = [AttemptHolder("red", 1, 1)]
        """Every token that was handed out, and one that never was."""
        self.tasks: list[ActivityRescheduleTask] = []

    def agree(self, call: Callable[[], object], verdict: Verdict) -> None:
        """Make the call and check that it does what the model says."""
        before, length = self.scenario.activity, len(self.scenario.log)
        if isinstance(verdict, bool):
            call()
            assert (len(self.scenario.log) > length) is verdict
        else:
            with pytest.raises(LivenessError) as refused:
                call()
            assert refused.type is verdict
        if verdict is not True:
            assert (self.scenario.activity, len(self.scenario.log)) == (before, length)

    # -- scheduling, handing out, claiming

    @precondition(lambda self: not self.model.phase)
    @rule(delay_ms=st.sampled_from([0, 0, 25]))
    def is_scheduled(self, delay_ms: int) -> None:
        self.schedule(delay_ms)

    def schedule(self, delay_ms: int) -> None:
        verdict = self.model.schedule(self.scenario.now_ms, delay_ms)
        self.agree(lambda: self.scenario.schedule(delay_ms=delay_ms), verdict)

    @precondition(lambda self: self.model.phase in ("", "AVAILABLE") and len(self.away) < len(WORKERS))
    @rule(index=st.integers(0, len(WORKERS) - 1), claims=st.booleans())
    def is_handed_out(self, index: int, *, claims: bool) -> None:
        live = [worker for worker in WORKERS if worker not in self.away]
        worker = live[index % len(live)]
        if claims or not self.model.phase:
            self.claim(worker)
        else:
            now_ms = self.scenario.now_ms
            self.model.start(worker, self.epochs[worker], now_ms, now_ms + VERIFY_AFTER_MS)
            assert self.scenario.start(worker, self.epochs[worker]) == self.model.holder
            self.give(self.model.holder)

    def claim(self, worker: str) -> None:
        epoch, now_ms = self.epochs[worker], self.scenario.now_ms
        holder = self.model.holder
        if worker in self.away or (
            holder and holder[:2] == (worker, epoch) and self.scenario.known.epoch != epoch
        ):
            return  # the caller refuses it; or the attempt was kept by a new session, where both answers are right
        verdict = self.model.claim(worker, epoch, now_ms, now_ms + VERIFY_AFTER_MS)
        self.agree(lambda: self.scenario.claim(worker, epoch), verdict)
        if verdict is True:
            self.give(self.model.holder)

    def give(self, token: AttemptHolder | None) -> None:
        assert token is not None
        self.bound[token.worker] = token
        self.tokens.append(token)

    # -- ends, with valid and invented tokens

    @precondition(lambda self: self.bound)
    @rule(call=end_calls, after_ms=st.sampled_from([None, None, 0, 5]))
    def the_holder_ends_it(self, call: str, after_ms: int | None) -> None:
        [token] = self.bound.values()
        self.end(token, call, after_ms)

    @precondition(lambda self: self.model.phase)
    @rule(which=some, twist=twists, call=end_calls)
    def any_token_ends_it(self, which: int, twist: str, call: str) -> None:
        token = self.tokens[-1 - which % len(self.tokens)]
        if twist == "worker":
            token = token._replace(worker=WORKERS[WORKERS.index(token.worker) - 1])
        elif twist == "epoch":
            token = token._replace(epoch=token.epoch + 1)
        elif twist:
            token = token._replace(attempt=token.attempt + (1 if twist == "after" else -1))
        self.end(token, call, None)

    def lease_is_over(self, token: AttemptHolder) -> bool:
        """Return whether the caller refuses the token, although it names the holder's worker and attempt."""
        activity = self.scenario.known
        is_holders = (activity.worker, activity.attempt) == (token.worker, token.attempt)
        return is_holders and self.bound.get(token.worker) != token

    def end(self, token: AttemptHolder, call: str, after_ms: int | None) -> None:
        if self.lease_is_over(token):
            return
        scenario, model = self.scenario, self.model
        verdict: Verdict
        if call == "complete":
            result = str(len(self.tokens)).encode()
            verdict = model.complete(token, result, scenario.now_ms)
            self.agree(lambda: scenario.complete(token, result), verdict)
        elif call == "give back":
            verdict = model.give_back(token, scenario.now_ms)
            self.agree(lambda: scenario.give_back(token), verdict)
        else:
            retryable = call == "fail"
            verdict = model.fail(token, scenario.now_ms, retryable=retryable, after_ms=after_ms)
            self.agree(lambda: scenario.fail(token, retryable=retryable, after_ms=after_ms), verdict)
        if verdict is True:
            assert self.bound.pop(token.worker) == token

    @precondition(lambda self: self.model.phase)
    @rule(which=some, details=st.sampled_from([None, b"1", b"2"]))
    def a_token_sends_a_heartbeat(self, which: int, details: bytes | None) -> None:
        token = self.tokens[-1 - which % len(self.tokens)]
        if not self.lease_is_over(token):
            verdict = self.model.heartbeat(token, self.scenario.now_ms, details)
            self.agree(lambda: self.scenario.heartbeat(token, details), verdict)

    @precondition(lambda self: self.model.phase)
    @rule(ms=st.sampled_from([1, 15, 40]))
    def time_passes_and_limits_are_enforced(self, ms: int) -> None:
        self.scenario.wait(ms)
        verdict = self.model.time_out(self.scenario.now_ms)
        self.agree(self.scenario.time_out_if_over, verdict)
        if verdict is True:
            self.bound.clear()

    # -- calls by operators, timers and other engines

    @precondition(lambda self: self.model.phase)
    @rule(
        call=st.sampled_from(
            ["schedule", "claim", "claim", "retry", "retry", "fall due", "hand on", "cancel"]
        ),
        worker=workers,
    )
    def a_call_repeats_or_does_not_apply(self, call: str, worker: str) -> None:
        if call == "schedule":
            self.schedule(25)
        elif call == "claim":
            self.claim(worker)
        elif call == "retry":
            self.agree(self.scenario.retry, self.model.restart(self.scenario.now_ms))
        elif call == "fall due":
            self.agree(
                self.scenario.make_available_if_due, self.model.make_available_if_due(self.scenario.now_ms)
            )
        elif call == "hand on":
            self.agree(self.scenario.hand_on, self.model.hand_on())
        else:
            self.agree(self.scenario.cancel, self.model.cancel())
            if self.model.phase == "CANCELLED":
                self.bound.clear()

    @precondition(lambda self: self.model.phase == "WAITING")
    @rule(ms=st.sampled_from([1, 10, 60]))
    def time_passes(self, ms: int) -> None:
        self.scenario.wait(ms)
        self.agree(
            self.scenario.make_available_if_due, self.model.make_available_if_due(self.scenario.now_ms)
        )

    @precondition(lambda self: self.model.phase == "RELEASED")
    @rule(taken=st.booleans())
    def another_engine_takes_it_or_is_gone(self, *, taken: bool) -> None:
        if taken:
            self.agree(self.scenario.hand_on, self.model.hand_on())
        else:
            self.model.cancel_hand_on(self.scenario.now_ms)
            self.scenario.cancel_hand_on()

    @precondition(lambda self: self.model.phase in ("COMPLETED", "CANCELLED"))
    @rule()
    def another_activity(self) -> None:
        self.teardown()
        self.begin()

    # -- workers are lost, and what they held is rescheduled

    @precondition(lambda self: self.bound)
    @rule(how=st.sampled_from(["dies", "dies", "is replaced", "is replaced and kept", "lets go"]))
    def its_worker(self, how: str) -> None:
        [token] = self.bound.values()
        if how == "is replaced and kept":
            self.epochs[token.worker] += 1
            self.give(self.model.keep_over_session(self.epochs[token.worker]))
            return
        del self.bound[token.worker]
        self.tasks.append(task(*token, died=how != "lets go"))
        if how == "dies":
            self.away.add(token.worker)
        elif how == "is replaced":
            self.epochs[token.worker] += 1

    @precondition(lambda self: self.model.phase == "AVAILABLE" and len(self.away) < len(WORKERS))
    @rule(
        index=st.integers(0, len(WORKERS) - 1),
        how=st.sampled_from(["dies", "is replaced", "lets go"]),
        kept=st.sampled_from([False, False, True]),
    )
    def is_handed_out_and_lost_at_once(self, index: int, how: str, *, kept: bool) -> None:
        """The common order of events, without delays."""
        self.is_handed_out(index=index, claims=False)
        if kept:
            self.its_worker(how="is replaced and kept")
        self.its_worker(how=how)
        self.is_rescheduled(which=0, to_other_engine=False)

    @precondition(lambda self: self.model.holder is not None and not self.bound)
    @rule()
    def is_taken_back_because_its_worker_is_not_bound_to_it(self) -> None:
        """The reschedule is so late that the service verified the dispatch first."""
        activity = self.scenario.known
        token = AttemptHolder(activity.worker, activity.epoch, activity.attempt)
        self.model.holder = token
        self.agree(lambda: self.scenario.give_back(token), self.model.give_back(token, self.scenario.now_ms))

    @precondition(lambda self: self.away)
    @rule()
    def dead_workers_return(self) -> None:
        for worker in self.away:
            self.epochs[worker] += 1
        self.away.clear()

    @rule(
        worker=st.sampled_from(["outside", "outside", *WORKERS]),
        leases_ago=st.integers(1, 2),
        ahead=st.sampled_from([-1, 0, 0, 0, 1]),
        died=st.booleans(),
    )
    def a_worker_that_bound_it_by_heartbeat_is_lost(
        self, worker: str, leases_ago: int, ahead: int, *, died: bool
    ) -> None:
        """The loss of any attempt in a lease that has ended."""
        epoch = self.epochs.get(worker, 3) - leases_ago
        holder = self.model.holder
        if epoch < 1 or (holder and holder.worker == worker and epoch >= self.model.since_epoch):
            return
        self.tasks.append(task(worker, epoch, max(self.model.attempt + ahead, 1), died=died))

    @precondition(lambda self: self.tasks)
    @rule(which=some, to_other_engine=st.sampled_from([False, False, False, True]))
    def is_rescheduled(self, which: int, *, to_other_engine: bool) -> None:
        self.deliver(self.tasks[-1 - which % len(self.tasks)], to_other_engine=to_other_engine)

    def deliver(self, lost: ActivityRescheduleTask, *, to_other_engine: bool) -> None:
        verdict = self.model.reschedule(lost, self.scenario.now_ms, to_other_engine=to_other_engine)
        self.agree(lambda: self.scenario.reschedule(lost, to_other_engine=to_other_engine), verdict)

    # -- invariants

    @invariant()
    def the_activity_agrees_with_the_model(self) -> None:
        activity, model = self.scenario.activity, self.model
        if activity is None:
            assert not model.phase
            return
        assert activity.state is model.state
        assert (activity.attempt, activity.failures, activity.deaths) == (
            model.attempt,
            model.failures,
            model.deaths,
        )
        assert (activity.due_ms, activity.result) == (model.due_ms, model.result)
        assert activity.details == model.details
        assert activity.worker == (model.holder.worker if model.holder else "")
        assert (activity.epoch > 0) is (activity.state is ActivityState.STARTED)

    @invariant()
    def at_most_one_worker_holds_it_and_the_activity_names_it(self) -> None:
        assert len(self.bound) <= 1
        for token in self.bound.values():
            activity = self.scenario.known
            assert activity.state is ActivityState.STARTED
            assert (activity.worker, activity.attempt) == (token.worker, token.attempt)

    def teardown(self) -> None:
        if hasattr(self, "scenario"):  # missing if `prepare` failed
            self.check_log()
            self.check_fold()
            self.check_not_stuck()

    def check_log(self) -> None:
        """Check the log alone: one holder at a time, one completion by that holder, rising attempts, final
        ends."""
        holder: ActivityStarted | None = None
        attempts = [0]
        completions = 0
        for index, event in enumerate(self.scenario.log):
            if isinstance(event, ActivityStarted):
                assert holder is None
                assert event.attempt > attempts[-1]
                attempts.append(event.attempt)
                holder = event
            elif isinstance(event, AttemptEnded):
                lost = isinstance(event, ActivityFailed) and holder is None
                assert lost or (holder and (holder.worker, holder.attempt) == (event.worker, event.attempt))
                holder = None
            elif isinstance(event, ActivityCancelRequested | ActivityCancelled):
                holder = None
            elif isinstance(event, ActivityTimedOut):
                assert (event.worker, event.attempt if holder else 0) == (
                    (holder.worker, holder.attempt) if holder else ("", 0)
                )
                assert event.at_ms - event.since_ms >= event.limit_ms
                holder = None
            completions += isinstance(event, ActivityCompleted)
            if isinstance(event, ActivityCompleted | ActivityCancelled):
                assert index == len(self.scenario.log) - 1
            is_final = isinstance(event, ActivityTimedOut) and not event.due_ms
            if (is_final or isinstance(event, ActivityFailed)) and index + 1 < len(self.scenario.log):
                again = self.scenario.log[index + 1]
                assert isinstance(again, ActivityMadeAvailable)
                assert again.fresh
        assert completions == (self.model.phase == "COMPLETED")
        known = [state.attempt for state in self.scenario.states if state]
        assert known == sorted(known)

    def check_fold(self) -> None:
        """Folding gives the same state from the beginning and from each intermediate state."""
        folded: Activity | None = None
        for index, event in enumerate(self.scenario.log):
            wall_ms = self.scenario.wall_times[index]
            folded = evolve(folded, event, ID.workflow_id, wall_ms)
            assert folded == evolve(self.scenario.states[index], event, ID.workflow_id, wall_ms)
            assert folded == self.scenario.states[index + 1]
        assert folded == self.scenario.activity

    def check_not_stuck(self) -> None:
        """After every reschedule is delivered, a held activity has a live holder, and every activity can
        reach an end."""
        for lost in self.tasks:
            self.deliver(lost, to_other_engine=False)
        if self.scenario.activity is None:
            return
        for _ in range(4):
            activity = self.scenario.known
            if activity.state in FINISHED_ACTIVITY_STATES:
                return
            if activity.state is ActivityState.STARTED:
                assert activity.worker in self.bound
                self.scenario.complete(self.bound[activity.worker])
            elif activity.state is ActivityState.AVAILABLE:
                self.bound["late"] = self.scenario.start("late")
            elif activity.state is ActivityState.WAITING:
                self.scenario.wait(max(activity.due_ms - self.scenario.now_ms, 0)).make_available_if_due()
            elif activity.state is ActivityState.RELEASED:
                self.scenario.hand_on()
            else:
                assert activity.state is ActivityState.QUARANTINED
                self.scenario.retry()
        raise AssertionError(f"it is still {self.scenario.known.state.name}")


TestActivityMachine = ActivityMachine.TestCase
TestActivityMachine.settings = settings(max_examples=250, stateful_step_count=60)
