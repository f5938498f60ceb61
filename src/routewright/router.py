"""The public door: ``Router`` chooses a model for each request, calls it, and can say why."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from types import TracebackType
from typing import Self, TypeVar, Unpack, get_args

from msgspec.structs import replace

from ._core.board import Board, Boards
from ._core.decision import Decision, decide
from ._core.explain import explain
from ._core.ids import normalise_trace_id
from ._core.intake import RULES
from ._core.pool import Pool
from ._core.problem import shown
from ._engine.answer import Answer
from ._engine.reading import is_large, read
from ._engine.stream import Stream
from ._engine.trace import TraceCounts
from .assembly import Parts
from .backends.providers.sandbox import Answers, Faults
from .blocking import BlockingRouter
from .catalogue import Catalogue
from .errors import NotFound, Problem, ValidationFailed
from .options import Options, RequestLike
from .protocols import Provider, Storage
from .settings import Settings
from .wire import (
    SYSTEM_ACCOUNT,
    Caller,
    CatalogueSnapshot,
    DecisionInput,
    Environment,
    HealthSnapshot,
    Model,
    Policy,
    PutFeedback,
    Trace,
)

T = TypeVar("T")
MAX_ACCOUNT_CHARS = 200
ENVIRONMENTS = get_args(Environment)


class Router:
    """Routes chat requests across the models of its providers.

        async with Router() as router:
            answer = await router.route("Why is the sky blue?", goal="quality", budget={"maxCostUsd": 0.01})
            print(answer.output, answer.routing.selected_model)

    Without ``providers`` they are found from the usual environment variables. ``async with`` is optional. One Router
    serves any number of threads and event loops, before and after a fork.
    """

    def __init__(
        self,
        *,
        providers: Sequence[Provider] | None = None,
        catalogue: Catalogue | None = None,
        policies: Sequence[Policy] = (),
        storage: Storage | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._parts = Parts(providers, catalogue, policies, storage, settings)
        self._caller = Caller()

    @classmethod
    def sandbox(
        cls,
        answers: Answers | None = None,
        faults: Faults | None = None,
        *,
        catalogue: Catalogue | None = None,
        policies: Sequence[Policy] = (),
        storage: Storage | None = None,
        settings: Settings | None = None,
    ) -> Self:
        """A Router with canned output: no key, no network, never billed, everything else as it is.

        ``answers`` maps the last user message to its answer, or is a function of the ``UpstreamCall``. ``faults`` maps
        a model id or ``"*"`` to the ``FaultKind`` its calls end in, or to a list of them for its first calls.
        """
        router = cls.__new__(cls)
        router._parts = Parts(
            (), catalogue, policies, storage, settings,
            environment="sandbox", answers=answers, faults=faults,
        )  # fmt: skip
        router._caller = Caller(environment="sandbox")
        return router

    async def __aenter__(self) -> Self:
        self._parts.engine.fleet(self._caller.environment)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def route(self, request: RequestLike, *, caller: Caller | None = None, **options: Unpack[Options]) -> Answer:
        """Answer a request, falling back along the chain where a model fails.

        Raises ``ValidationFailed``, ``NoCandidates`` (``BudgetExceeded``), ``ContentRefused``, ``UpstreamFailed`` and
        ``RouterTimeoutError``; what it raises names the trace.
        """
        return Answer(await self._parts.engine.route(request, options, self._as(caller)))

    def stream(self, request: RequestLike, *, caller: Caller | None = None, **options: Unpack[Options]) -> Stream:
        """Answer a request piece by piece. Nothing happens before the first piece is asked for, but that a request
        of ordinary size is checked."""
        large = is_large(request, options) and not self._parts.settings.clock.virtual
        known = request if large else read(request, options)
        return Stream(self._parts.engine, known, options, self._as(caller))

    def decide(self, request: RequestLike, *, caller: Caller | None = None, **options: Unpack[Options]) -> Decision:
        """Choose without calling anything. Takes microseconds, unless tokens have to be counted.

        Raises ``ValidationFailed`` and ``NoCandidates`` (``BudgetExceeded``).
        """
        engine = self._parts.engine
        return Decision(engine.choose_now(engine.admit(read(request, options), self._as(caller))))

    def explain(self, decided: Decision | Answer | Trace) -> str:
        """The decision as a table: chosen, runner-up, fallbacks, rejected and why."""
        if isinstance(decided, Answer):
            decided = decided.decision
        return explain(decided if isinstance(decided, Decision) else self.replay(decided))

    def replay(self, decided: Answer | Trace | Decision | DecisionInput) -> Decision:
        """Take a decision again from its stored input; it comes out the same, bit for bit.

        Raises ``NotFound`` if a snapshot that the input names is no longer stored.
        """
        given = _input_of(decided)
        if given.rules != RULES:
            raise NotFound(
                f"the decision was made by scoring rules {given.rules}, which this version (rules {RULES}) lacks"
            )
        return decide(given, self._board(given))

    def models(self, *, caller: Caller | None = None) -> list[Model]:
        """Every known model, with price, window, abilities and availability (spec 2.3).

        ``availability.status`` is ``unavailable`` for what is not called: no provider serves it, it is disabled, or its
        vendor gave it up; ``degraded`` where most calls of late failed.
        """
        return self._parts.fleet(self._as(caller).environment).models()

    def policies(self) -> list[Policy]:
        """The policies that ``policy_id`` can name."""
        return [snapshot.policy for snapshot in self._parts.engine.policies]

    async def feedback(
        self, trace_id: str, score: float, comment: str | None = None, *, caller: Caller | None = None
    ) -> None:
        """Say how good an answer was, 0 to 1. Raises ``NotFound`` if the caller has no such trace."""
        given: object = score
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given <= 1:
            raise ValidationFailed.of(Problem("score", f"is {shown(score)}", "give a number from 0 (bad) to 1 (good)"))
        if not isinstance(comment, str | None):
            raise ValidationFailed.of(Problem("comment", f"must be a string, got {shown(comment)}", ""))
        at = self._parts.settings.clock.time()
        caller, trace_id = self._as(caller), normalise_trace_id(trace_id)
        said = PutFeedback(trace_id, float(score), comment, at, expect="present", environment=caller.environment)
        await self._parts.log.feedback(caller, said)

    async def trace(self, trace_id: str, *, caller: Caller | None = None) -> Trace:
        """Read a trace. Raises ``NotFound`` alike for an unknown one and another account's."""
        return await self._parts.log.trace(self._as(caller), normalise_trace_id(trace_id))

    def as_caller(self, caller: Caller) -> Self:
        """The same Router for another caller."""
        view = type(self).__new__(type(self))
        view._parts = self._parts
        view._caller = self._placed(caller)
        return view

    @property
    def trace_counts(self) -> TraceCounts:
        """Traces of this process that are not in the storage: ``waiting``, ``refused`` by it, and ``lost``."""
        return self._parts.trace_counts

    async def flush(self) -> None:
        """Write all traces that still wait. Raises ``StorageUnavailable`` if some still do, and ``InternalError`` if
        some were refused or lost since the last time."""
        await self._parts.log.flush()

    async def aclose(self) -> None:
        """Write what waits and free connections, within two seconds. Twice is once.

        What could not be written is counted and logged. A call after this raises ``RouterClosed``."""
        await self._parts.aclose()

    @cached_property
    def blocking(self) -> BlockingRouter:
        """The same methods for code without ``await``."""
        return BlockingRouter(self, self._parts.worker)

    def _as(self, caller: Caller | None) -> Caller:
        return self._caller if caller is None else self._placed(caller)

    def _placed(self, caller: Caller) -> Caller:
        """A caller that is one; in a sandbox Router everybody is in the sandbox."""
        _check_caller(caller)
        if self._parts.environment == "sandbox" and caller.environment != "sandbox":
            return replace(caller, environment="sandbox")
        return caller

    def _board(self, given: DecisionInput) -> Board:
        """The snapshots that a decision names, compiled."""
        self._parts.fleet(self._parts.environment)
        for fleet in self._parts.fleets():
            if fleet.pool.snapshot.id == given.catalogue:
                health = fleet.board().outlook.health
                return fleet.boards.of(health if health.id == given.health else self._health(given.health))
        return Boards(Pool(self._snapshot(given.catalogue, CatalogueSnapshot))).of(self._health(given.health))

    def _health(self, snapshot_id: str) -> HealthSnapshot:
        return self._snapshot(snapshot_id, HealthSnapshot)

    def _snapshot(self, snapshot_id: str, kind: type[T]) -> T:
        found = self._parts.wait(self._parts.log.snapshot, snapshot_id)
        if not isinstance(found, kind):
            raise NotFound(f"snapshot {snapshot_id!r} is not stored any more, so the decision cannot be replayed")
        return found


def _check_caller(caller: object) -> None:
    """Refuse what would be billed to nobody, answered in no environment, or kept among the Router's own things."""
    if not isinstance(caller, Caller):
        raise ValidationFailed.of(Problem("caller", f"is {shown(caller)}", "pass Caller(account=...)"))
    account: object = caller.account
    if not isinstance(account, str) or not 1 <= len(account) <= MAX_ACCOUNT_CHARS or not account.isprintable():
        problem = f"must be 1 to {MAX_ACCOUNT_CHARS} printable characters, got {shown(account)}"
        raise ValidationFailed.of(Problem("caller.account", problem, ""))
    if account == SYSTEM_ACCOUNT:
        raise ValidationFailed.of(Problem("caller.account", f"{account!r} is the Router's own", "use another name"))
    if caller.environment not in ENVIRONMENTS:
        problem = f"must be 'production' or 'sandbox', got {shown(caller.environment)}"
        raise ValidationFailed.of(Problem("caller.environment", problem, ""))
    if not isinstance(caller.key_id, str | None):
        raise ValidationFailed.of(Problem("caller.key_id", f"must be a string, got {shown(caller.key_id)}", ""))


def _input_of(decided: Answer | Trace | Decision | DecisionInput) -> DecisionInput:
    if isinstance(decided, DecisionInput):
        return decided
    if isinstance(decided, Answer):
        return decided.decision.input
    if isinstance(decided, Decision):
        return decided.input
    if not isinstance(decided, Trace):
        hint = "pass an Answer, a Trace (await router.trace(id)), a Decision or its input"
        raise ValidationFailed.of(Problem("", f"{shown(decided)} holds no decision", hint))
    if decided.decision_input is None:
        raise NotFound(f"trace {decided.id!r} holds no decision")
    return decided.decision_input
