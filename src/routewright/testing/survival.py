"""Tests if policies survive failures of providers: one case per policy and situation, for any test runner.

A case runs its situation with a real Router on virtual time and faulty providers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import inf
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import anyio

from routewright import errors
from routewright._core.guardrails.screen import RequestGate, guardrails_of
from routewright._core.request.read import as_request
from routewright._engine.guardrails import pass_gate, rest
from routewright._runtime.loop import this_loop
from routewright._setup.arguments import RequestLike, validate_policies
from routewright.backends.clock import SystemClock
from routewright.catalogue import Catalogue
from routewright.router import Router
from routewright.settings import Settings
from routewright.wire import Fallback, ModelSpan, Policy, PolicyFallback, RouteRequest, Trace, Usage
from routewright.wire.problems import did_you_mean, shown

from .clock import FakeClock
from .faulty import FaultyProvider

BACK_WITHIN_S = 16
"""Seconds after its recovery within which a provider must be used again."""
DOWN_S = 20
"""How long a flapping provider is down, with one call per second."""


class Situation(NamedTuple):
    """A failure of the provider of the chosen model; all others work."""

    name: str
    what: str
    """Description, continuing "the provider"."""
    fault: str
    """One of ``routewright.testing.SCENARIOS``."""
    times: int | None = None
    """How many calls fail; None: all."""


SITUATIONS = (
    Situation("rate_limited", "says 429 once, with Retry-After: 1", "rate_limited_second", 1),
    Situation("rate_limited_for_ever", "says 429 to every call", "rate_limited"),
    Situation("unavailable_for_ever", "says 503 to every call", "unavailable"),
    Situation("server_error_once", "says 500 once", "server_error", 1),
    Situation("reset", "resets the connection once", "reset_before_headers", 1),
    Situation("silent", "takes every call and says nothing", "silent"),
    Situation("slow_first_token", "makes callers wait a minute for the first token", "slow_first_token"),
    Situation("stream_cut", "resets every connection in the middle of the answer", "reset_mid_body"),
    Situation("stream_stalled", "stalls in the middle of every answer", "stall_mid_answer"),
    Situation("malformed_chunk", "sends broken JSON in the middle of every answer", "malformed_chunk"),
    Situation("missing_end", "ends every answer without its end", "truncated"),
    Situation("context_overflow", "says that the prompt is too long", "context_overflow"),
    Situation("moderation", "refuses the content", "moderation"),
    Situation("cut_not_continued", "cuts every answer, which no other model would continue", "error_event"),
    Situation("flapping", "is down for a while, and then well again", "unavailable"),
    Situation("usage_after_fallback", "cuts every answer, and bills what came of it", "reset_mid_body"),
)
_CUT = ("stream_cut", "stream_stalled", "malformed_chunk", "missing_end", "cut_not_continued", "usage_after_fallback")
"""Situations in which content comes before the fault."""


class NotSurvived(AssertionError):
    """A policy does not survive a situation. The message names both, what happened, and what to change."""

    __module__ = "routewright.testing"


class SituationCase:
    """One policy in one situation."""

    def __init__(
        self,
        policy: Policy,
        situation: Situation,
        *,
        policies: Sequence[Policy],
        catalogue: Catalogue,
        request: RouteRequest,
    ) -> None:
        self.policy = policy
        self.situation = situation
        self._policies = policies
        self._catalogue = catalogue
        self._request = request

    def __repr__(self) -> str:
        return f"{self.policy.name}-{self.situation.name}"

    def check(self) -> None:
        """Run it, plain and streamed, in milliseconds. Raises ``NotSurvived``, an ``AssertionError``.

        For plain tests; raises ``RuntimeError`` in an async one.
        """
        __tracebackhide__ = True
        if this_loop() is not None:
            raise RuntimeError("check() runs an event loop of its own; call it from a plain test")
        for streamed in (False, True):
            try:
                anyio.run(_Stage(self, streamed=streamed).play)
            except NotSurvived as error:
                raise error.with_traceback(None) from None  # frames of this module would not help


def situations(
    policies: str | Path | Sequence[Policy],
    policy: str | None = None,
    *,
    catalogue: Catalogue | None = None,
    request: RequestLike = "Hello",
) -> list[SituationCase]:
    """Sixteen cases for each policy, or for the named one.

        for case in situations("policies.toml"):
            case.check()

    The provider of the model chosen for ``request`` fails; all others of the ``catalogue`` work. Nothing is sent, and
    time is virtual. Raises ``ValidationFailed``.
    """
    path = "policies"
    policy_list: Any = policies
    if isinstance(policy_list, str | Path):
        from routewright.policies import read_policies  # loads pydantic

        path = str(policy_list)
        policy_list = read_policies(path)
    elif isinstance(policy_list, Sequence):
        policy_list = validate_policies(policy_list)
    else:
        hint = "pass the path of a file, or a list: [Policy(...)]"
        raise errors.ValidationFailed.of(errors.Problem(path, f"{shown(policy_list)} is not a list of policies", hint))
    if not policy_list:
        raise errors.ValidationFailed.of(errors.Problem(path, "there is no policy", "write the policy to test"))
    selected = [candidate for candidate in policy_list if policy is None or policy in (candidate.name, candidate.id)]
    if policy is not None and not selected:
        hint = did_you_mean(policy, [candidate.name for candidate in policy_list]) or "give the name or the id of one"
        raise errors.ValidationFailed.of(errors.Problem("policy", f"there is no policy {shown(policy)}", hint))
    models = Catalogue() if catalogue is None else catalogue
    route_request = as_request(request, {})
    return [
        SituationCase(candidate, situation, policies=policy_list, catalogue=models, request=route_request)
        for candidate in selected
        for situation in SITUATIONS
    ]


def calls_of(trace: Trace) -> str:
    """The number of a call's attempts and their models, in words."""
    models = [span.model for span in trace.spans if isinstance(span, ModelSpan)]
    if not models:
        return "nothing was called"
    count = "1 call" if len(models) == 1 else f"{len(models)} calls"
    return f"{count}, of {', then '.join(dict.fromkeys(models))}"


class _Stage:
    """One policy in one situation, plain or streamed."""

    def __init__(self, case: SituationCase, *, streamed: bool) -> None:
        self._policy = case.policy
        self._rules = case.policy.fallback or PolicyFallback()
        self._situation = case.situation
        self._request = case._request
        self._catalogue = case._catalogue
        self._streamed = streamed
        self._models = {model.id: model for model in self._catalogue.models}
        self._clock = FakeClock(SystemClock().time())
        self._broken = ""
        """The provider that fails."""
        self._failures = inf if case.situation.times is None else case.situation.times
        self._providers = [
            FaultyProvider(self._faults(name), name=name, clock=self._clock)
            for name in sorted({model.provider for model in self._models.values()})
        ]
        self._router = Router(
            providers=self._providers,
            catalogue=self._catalogue,
            policies=case._policies,
            settings=Settings(clock=self._clock, rng=Random(0), stale_after_days=None),
        )

    def _faults(self, provider: str) -> Iterator[str | None]:
        """The fault of each of a provider's calls, or None. Endless."""
        while True:
            fails = provider == self._broken and self._failures > 0
            self._failures -= fails
            yield self._situation.fault if fails else None

    async def play(self) -> None:
        """Raises ``NotSurvived``."""
        name = self._policy.name
        gate = RequestGate(self._request, guardrails_of(self._policy))
        await pass_gate(gate, partial(rest, self._clock))
        if gate.blocked is not None:
            by = f"guardrail {gate.blocked.guardrail!r} blocks the request itself, by its rule {gate.blocked.rule!r}"
            raise NotSurvived(f"policy {name!r} cannot be tried: its {by}; pass another 'request='")
        try:
            decision = self._router.decide(gate.request, policy_id=name)
        except errors.RouterError as error:
            raise NotSurvived(f"policy {name!r} cannot serve the request even without a fault: {error}") from None
        self._model = decision.model
        self._chain = decision.chain
        self._broken = self._models[decision.model].provider
        if self._situation.name == "flapping":
            for second in range(DOWN_S + BACK_WITHIN_S):
                if second == DOWN_S:
                    self._broken = ""
                await self._call()
                await self._clock.sleep(1.0)
            candidates = self._router.decide(self._request, policy_id=name).candidates
            if self._model not in [candidate.model for candidate in candidates]:
                raise self._lost(f"it is not in service {BACK_WITHIN_S} s after its recovery")
            return
        trace = await self._call()
        calls = [call for provider in self._providers for call in provider.calls]
        if any(
            [*call.messages] != gate.request.messages for call in calls
        ):  # a prompt must not hold parts of an answer
            raise self._lost("a fallback got other messages than those of the request")
        for span in trace.spans:  # each attempt is priced by its own model
            if isinstance(span, ModelSpan) and span.tokens and self._models[span.model].pricing_per_1m is not None:
                usage = Usage(span.tokens.input, span.tokens.output, span.tokens.cached)
                due = self._catalogue.bill(span.model, usage, on=trace.created_at[:10]).total_usd
                if abs(due - span.cost_usd) > 1e-9:
                    raise self._lost(f"{span.model} costs ${due:.9f}, and ${span.cost_usd:.9f} is in the trace")

    async def _call(self) -> Trace:
        """Make a call. Returns its trace; raises ``NotSurvived`` if it did not end as it should."""
        request = self._request
        name = self._situation.name
        error: errors.RouterError | None = None
        try:
            if self._streamed:
                async with self._router.stream(request, policy_id=self._policy.name) as stream:
                    async for _ in stream:
                        pass
                trace_id = stream.result.trace_id
            else:
                trace_id = (await self._router.route(request, policy_id=self._policy.name)).trace_id
        except errors.RouterError as failed:
            error = failed
            trace_id = failed.trace_id or ""
        trace = await self._router.trace(trace_id)
        refuses = name == "moderation" and self._rules.on_refusal == "fail"
        if error is None and refuses:
            raise self._lost("a refused request went to another model, which no policy asks for")
        if error is None:
            return trace
        if refuses:
            expected = isinstance(error, errors.ContentRefused)
        elif name == "context_overflow":  # no other model takes more
            windows = [self._models[model].context_window or 0 for model in (self._model, *self._chain)]
            expected = isinstance(error, errors.UpstreamFailed) and max(windows) == windows[0]
        else:  # a caller may prefer to be told of a cut answer
            on_partial = (request.fallback or Fallback()).on_partial or self._rules.on_partial
            is_cut = self._streamed and name in _CUT and isinstance(error, errors.UpstreamFailed)
            expected = is_cut and on_partial == "error"
        if expected:
            return trace
        outcome = f"the caller got {type(error).__name__} ({error.status}); {calls_of(trace)}"
        raise self._lost(outcome, self._remedy(error))

    def _remedy(self, error: errors.RouterError) -> str:
        """What to change."""
        model = self._models[self._model]
        chain = self._chain
        again = "; or let 'fallback.max_retries' be 1" if self._rules.max_retries == 0 and self._situation.times else ""
        if not chain and self._rules.models == []:
            return f"'fallback.models' is empty: leave it out, or name a model of another provider there{again}"
        if not chain:
            return f"its plan is {model.id} alone: let 'models' or 'fallback.models' allow another provider{again}"
        if all(self._models[other].provider == model.provider for other in chain):
            return f"its plan is all served by {model.provider}: let 'models' or 'fallback.models' allow another{again}"
        if isinstance(error, errors.RouterTimeoutError):
            return "allow more time in 'timeout_ms': a stream may be silent for a second"
        return "raise 'budget', which is to pay for a second attempt, or allow cheaper models"

    def _lost(self, outcome: str, remedy: str = "") -> NotSurvived:
        form = "streamed" if self._streamed else "plain"
        who = f"{self._model}, whose provider {self._situation.what}"
        message = f"policy {self._policy.name!r} does not survive {self._situation.name!r} ({form}; {who}): {outcome}"
        return NotSurvived(f"{message}; {remedy}" if remedy else message)
