"""Decides for requests that were let in. Tokens are counted only where their bounds leave it open."""

from __future__ import annotations

from routewright._core.catalogue import resolve_one
from routewright._core.constraints import CountTokens
from routewright._core.plan import Plan, build_plan
from routewright._core.tokens import VOCABULARIES
from routewright._core.why_not import WhyNot, why_not
from routewright.wire import DecisionInput

from .entry import Counting, Entry


class Choice:
    """One decision on its way. It raises what ``build_plan`` does, and ``InternalError`` for a predictor that fails."""

    __slots__ = ("_counting", "_entry", "given")

    def __init__(self, counting: Counting, entry: Entry) -> None:
        self._counting = counting
        self._entry = entry
        self.given = entry.admitted.given
        """With what was found out so far."""

    async def plan(self) -> Plan:
        """Decide; long prompts are counted in a worker thread."""
        plan = self._uncounted()
        if plan is None:
            self.given = await self._counting.recounted_aside(self._entry, self.given)
            plan = build_plan(self.given, self._entry.board, self._entry.laid)
        return plan

    def plan_now(self) -> Plan:
        """Decide without awaiting; counting tokens, where that is needed, holds up the caller."""
        plan = self._uncounted()
        if plan is None:
            self.given = self._counting.recounted(self._entry, self.given)
            plan = build_plan(self.given, self._entry.board, self._entry.laid)
        return plan

    def _uncounted(self) -> Plan | None:
        """The plan, or None where tokens have to be counted first: behind this, so that no refusal is chained to it."""
        self.given = self._counting.predicted(self._entry)
        try:
            return build_plan(self.given, self._entry.board, self._entry.laid)
        except CountTokens:
            return None


class Choices:
    """Decides, or says why not."""

    def __init__(self, counting: Counting) -> None:
        self._counting = counting

    def of(self, entry: Entry) -> Choice:
        """The decision for a request."""
        return Choice(self._counting, entry)

    async def plan(self, entry: Entry) -> Plan:
        """Decide (``Choice.plan``)."""
        return await self.of(entry).plan()

    def why_not(self, entry: Entry, model: str) -> WhyNot:
        """Say what would have to be true for a model, or an alias of one, to be chosen. Counts tokens."""
        model = resolve_one(model, entry.fleet.aliases, entry.fleet.pool.row, "model")
        return why_not(self.counted(entry), entry.board, model, entry.laid)

    def counted(self, entry: Entry) -> DecisionInput:
        """The decision's input with all that can be counted."""
        return self._counting.counted(entry, self._counting.predicted(entry), VOCABULARIES)

    async def counted_aside(self, entry: Entry) -> DecisionInput:
        """The same without holding up others."""
        return await self._counting.counted_aside(entry, self._counting.predicted(entry), VOCABULARIES)
