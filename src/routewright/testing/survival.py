"""Does a policy survive what providers do? One case a policy and situation, for any test runner."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio

from routewright._core.request.problems import did_you_mean, shown
from routewright._core.request.read import as_request
from routewright.arguments import RequestLike, checked_policies
from routewright.catalogue import Catalogue
from routewright.errors import Problem, ValidationFailed
from routewright.loop import this_loop
from routewright.wire import Policy

from .situation import SITUATIONS, Situation
from .stage import NotSurvived, Setup, Stage


class SituationCase:
    """One policy in one situation."""

    def __init__(self, policy: Policy, situation: Situation, setup: Setup) -> None:
        self.policy = policy
        self.situation = situation
        self._setup = setup

    def __repr__(self) -> str:
        return f"{self.policy.name}-{self.situation.name}"

    def check(self) -> None:
        """Play it, plain and streamed, in milliseconds. Raises ``NotSurvived``, an ``AssertionError``.

        It is for plain tests: in an async one it raises ``RuntimeError``.
        """
        __tracebackhide__ = True
        if this_loop() is not None:
            raise RuntimeError(
                "check() runs an event loop of its own: call it from a plain test, not from an async one"
            )
        for streamed in (False, True):
            try:
                anyio.run(Stage(self.policy, self.situation, self._setup, streamed=streamed).play)
            except NotSurvived as error:
                raise error.with_traceback(None) from None  # of a policy, so our own frames tell nothing


def situations(
    policies: str | Path | Sequence[Policy],
    policy: str | None = None,
    *,
    catalogue: Catalogue | None = None,
    request: RequestLike = "Hello",
) -> list[SituationCase]:
    """Sixteen cases for each policy, or for the one that is named.

        for case in situations("policies.toml"):
            case.check()

    The provider of the model that a policy chooses for ``request`` fails; all others of the ``catalogue`` are well.
    Nothing is sent, and time is virtual. Raises ``ValidationFailed``.
    """
    given = _read(policies)
    chosen = [each for each in given if policy is None or policy in (each.name, each.id)]
    if policy is not None and not chosen:
        hint = did_you_mean(policy, [each.name for each in given]) or "give the name or the id of one"
        raise ValidationFailed.of(Problem("policy", f"there is no policy {shown(policy)}", hint))
    setup = Setup(given, Catalogue() if catalogue is None else catalogue, as_request(request, {}))
    return [SituationCase(each, situation, setup) for each in chosen for situation in SITUATIONS]


def _read(policies: str | Path | Sequence[Policy]) -> Sequence[Policy]:
    path = str(policies) if isinstance(policies, str | Path) else None
    given = _checked(policies) if path is None else _read_file(path)
    if not given:
        raise ValidationFailed.of(Problem(path or "policies", "there is no policy", "write one that is to be tried"))
    return given


def _read_file(path: str) -> Sequence[Policy]:
    from routewright.policies import read_policies  # loads pydantic

    return read_policies(path)


def _checked(policies: object) -> Sequence[Policy]:
    if not isinstance(policies, Sequence):
        hint = "pass the path of a file, or a list: [Policy(...)]"
        raise ValidationFailed.of(Problem("policies", f"{shown(policies)} is not a list of policies", hint))
    return checked_policies(policies)
