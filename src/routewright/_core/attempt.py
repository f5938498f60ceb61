"""What to do after an attempt: the machine that walks a plan by the table of faults.

The machine never calls anything. ``next`` says what to do; whoever does it tells ``feed`` how it ended.

    next() -> Call ── feed(Succeeded) ──────────────────────────────> Done(succeeded)
                └──── feed(Failed) ─┬─ the answer can be mended ────> Call, same model, once: it is shown what is wrong
                                    ├─ retryable, tries left ───────> [Wait] Call, same model
                                    ├─ the chain may help ──────────> Call, next model that the budget still pays for
                                    └─ refused, late, nothing left ─> Done(failed)

A second call may run beside one that shows no life: ``hedge`` begins it, ``feed(Left)`` ends the one that lost.
"""

from __future__ import annotations

from typing import NamedTuple

from msgspec.structs import replace

from routewright.wire import FaultKind, TokenBounds, Usage

from .budget import Amount, Room, RoomTooSmall, output_cap
from .call import Call, Done, End, Failed, Left, Rules, Succeeded, Traffic, Wait
from .constraints import Ask
from .cost import Prices, call_nanos, dearest_at, usage_nanos
from .fault import FAULTS
from .plan import Plan
from .tokens import longer

_REFUSED_ELSEWHERE = FAULTS[FaultKind.REFUSED]._replace(fall_back=True)
"""Where a policy lets a refusal fall back."""

_ENDS = {FaultKind.BLOCKED: End.BLOCKED, FaultKind.REFUSED: End.REFUSED}
"""How it ends where nothing is left to try, by the last fault; all others fail."""
FIRST_TOKEN_FACTOR = 4
PAUSE_FACTOR = 3
"""A pause is drawn from between the shortest and this many times the one before (decorrelated jitter)."""
LEAST_SHARE = 0.01
"""Share of ``timeout_ms`` that a further call needs at least, where that is less than the limits' ``least_s``."""
FALLBACK_SHARE = 0.25
"""Share of ``timeout_ms`` that stays for the next member of the chain."""


class _Try(NamedTuple):
    """A call that runs, and what it was asked with."""

    number: int
    place: int
    cap: int | None
    ask: Ask


class Attempts:
    """Walks one decision's plan."""

    def __init__(self, plan: Plan, *, deadline: float, whole: bool, traffic: Traffic, rules: Rules) -> None:
        given = plan.given
        self.plan = plan
        self.room = Room(given.budget_nanos, given.budget_tokens)
        self.spent = Amount()
        """What may be gone of the budget."""
        self._deadline = deadline
        self._latest_start = deadline - min(rules.limits.least_s, LEAST_SHARE * given.timeout_ms / 1000)
        """Of a further call: upstream would only waste its work on one that begins later."""
        self._whole = whole
        self.on_partial = rules.on_partial
        """What a fault after content leads to."""
        self._traffic = traffic
        self._limits = rules.limits
        self._faults = FAULTS | {FaultKind.REFUSED: _REFUSED_ELSEWHERE} if rules.on_refusal_fall_back else FAULTS
        self._hedged = rules.hedged
        self._place = 0
        self._tries = 0
        self._number = 0
        self._pause = 0.0
        self._longest_pause = rules.limits.backoff_s * PAUSE_FACTOR
        self._last: Failed | None = None
        self._running: list[_Try] = []
        """The present call, and behind it the hedge."""
        self._beaten: frozenset[int] = frozenset()
        """Places whose hedge failed while the call before it ran on: no use to ask them again."""
        self._kept_away: list[int] = []
        """Places whose circuits were found open."""
        self._forced = False
        """A model whose circuit is open was called, for want of another."""
        self._ask: Ask = plan.ask
        self._repair: TokenBounds | None = None
        """Of the present model."""
        self.end: End | None = None
        """How it ended, once it has."""

    def next(self, now: float) -> Call | Wait | Done:
        """Say what to do at ``now`` (monotonic seconds)."""
        if self.end is not None:
            return Done(self.end)
        if now >= self._deadline or (self._last is not None and self._too_late(now)):
            return self._finish(End.TIMED_OUT)
        if self._pause:
            pause, self._pause = self._pause, 0.0
            return Wait(pause)
        self._kept_away.clear()
        return self._reach(now) or self._probe(now) or self._finish(self._failure)

    def feed(self, ended: Succeeded | Failed, *, now: float, jitter: float = 0.0, number: int | None = None) -> None:
        """Tell how a call ended: the last one, where no ``number`` says otherwise. ``jitter`` in [0, 1) lengthens
        pauses, lest callers retry in step."""
        tried = self._take(number)
        self._spend(tried, ended)
        if self.end is not None:  # by the other of two
            return
        if isinstance(ended, Succeeded):
            self.end = End.SUCCEEDED
            return
        self._last, rule = ended, self._faults[ended.kind]
        if rule.reason == "safety" and not rule.fall_back:
            self.end = End.REFUSED
        elif self._running:
            self._beaten |= {tried.place}
            self._go_on_with(self._running[0])
        elif now >= self._deadline:
            self.end = End.TIMED_OUT
        elif ended.delivered and self.on_partial == "error":
            self.end = self._failure
        elif rule.repair and ended.repair is not None and self._may_repair(now):
            self._begin_repair(ended.repair)
        elif rule.retry and self._may_retry(ended, now, jitter):
            pass
        elif rule.fall_back:
            self._move_on()
        else:
            self.end = self._failure

    def hedge(self, now: float) -> Call | None:
        """A call of the next model beside the one that runs and shows no life, where the budget pays for both and
        second tries are not many; None if not."""
        present, room = self._running[0], self.room
        self.room = room.without(*self._worst(present, self.plan.pool.prices[self.plan.rows[present.place]]))
        self._move_on()
        call = self._reach(now) if not self._too_late(now) and self._traffic.spares(now) else None
        self.room = room
        if call is None:
            self._go_on_with(present)
            return None
        return call._replace(hedge=True)

    def left(self, number: int, ended: Left) -> None:
        """Tell that a call was left, for the sake of another or because all is over."""
        self._pay(self._take(number), ended.usage, ended.day, broke_off=ended.touched)
        if self._running:
            self._go_on_with(self._running[0])

    @property
    def next_row(self) -> int | None:
        """The model that is called next, if it may be; None: the chain is at its end."""
        return self.plan.rows[self._place] if self._place < len(self.plan.rows) else None

    def cover(self, nanos: int) -> None:
        """Let all calls together cost at most what somebody vouches for, where their budget is not smaller."""
        budget = self.plan.given.budget_nanos
        most = nanos if budget is None else min(nanos, budget)
        self.room = self.room._replace(nanos=most - self.spent.nanos)

    @property
    def _failure(self) -> End:
        """How it ends where nothing is left to try."""
        return _ENDS.get(self._last.kind, End.FAILED) if self._last is not None else End.FAILED

    def _too_late(self, now: float) -> bool:
        """Whether a further call is left that would not have the time."""
        return now > self._latest_start and self._place < len(self.plan.rows)

    def _reach(self, now: float) -> Call | None:
        """The call of the first model, from the present place on, that the budget pays for and that may be called."""
        rows = self.plan.rows
        while self._place < len(rows):
            row = rows[self._place]
            try:
                cap = self._cap_of(row)
            except RoomTooSmall:
                self._move_on()
                continue
            if self._place not in self._beaten:
                admitted = self._traffic.admits(row, now)
                if admitted is not False:
                    return self._call(now, cap, probe=admitted is None)
                self._kept_away.append(self._place)
            self._move_on()
        return None

    def _probe(self, now: float) -> Call | None:
        """Where circuits alone kept models away: the call of the one that is due soonest. Once a request."""
        if not self._kept_away or self._forced:
            return None
        self._forced = True
        self._place = min(self._kept_away, key=lambda place: self._traffic.due(self.plan.rows[place]))
        return self._call(now, self._cap_of(self.plan.rows[self._place]), probe=True)

    def _cap_of(self, row: int) -> int | None:
        """Output tokens that a model may be asked for. Raises ``RoomTooSmall``."""
        return self.plan.output_cap if self._number == self._place == 0 else output_cap(self._ask, row, self.room)

    def _call(self, now: float, cap: int | None, *, probe: bool) -> Call:
        row = self.plan.rows[self._place]
        ask = self._ask
        if self._number == 0:
            self._traffic.asked(now)
        self._number += 1
        self._tries += 1
        self._running.append(_Try(self._number, self._place, cap, ask))
        wanted = ask.output if ask.output is not None else ask.outlook.pool.max_output[row]
        last = self._is_last
        return Call(
            self._number,
            row,
            cap,
            capped_by_budget=ask.limited and cap is not None and cap < wanted,
            patience_s=self._patience_s(row),
            latest=self._deadline if last else self._share(now),
            last=last,
            after=self._last,
            restart=self._last is not None and self._last.delivered,
            repair=self._repair,
            probe=probe,
            hedge_s=self._hedge_s(row) if self._hedged and not last and len(self._running) == 1 else None,
        )

    def _patience_s(self, row: int) -> float:
        """How long a model may be silent at first: four times what was observed, or else is to be expected; before a
        whole answer not less than that takes, which may be longer than those that were observed."""
        outlook, expected_ms = self.plan.ask.outlook, self.plan.expected_ms[row]
        if self._whole or self._traffic.whole(row):
            patience_ms = max(FIRST_TOKEN_FACTOR * (outlook.latency_p95_ms[row] or expected_ms), expected_ms)
        else:
            patience_ms = FIRST_TOKEN_FACTOR * (outlook.ttft_p95_ms[row] or outlook.ttft_ms[row])
        return max(self._limits.first_token_s, patience_ms / 1000)

    def _hedge_s(self, row: int) -> float | None:
        """After how long a silence another model is asked beside it; None where too little was observed to say."""
        outlook = self.plan.ask.outlook
        usual_ms = (outlook.latency_p95_ms if self._whole else outlook.ttft_p95_ms)[row]
        return None if usual_ms is None or self._last is not None else usual_ms / 1000

    @property
    def _is_last(self) -> bool:
        return self._place + 1 >= len(self.plan.rows)

    def _may_repair(self, now: float) -> bool:
        """Once a model, and not in the time that is the next one's."""
        return self._repair is None and (self._is_last or now < self._share(now))

    def _begin_repair(self, more: TokenBounds) -> None:
        given = self.plan.given
        self._repair = more
        self._ask = Ask(replace(given, tokens=longer(given.tokens, more)), self.plan.ask.outlook)

    def _share(self, now: float) -> float:
        """The deadline, less what stays for the next member of the chain."""
        left_s = self.plan.given.timeout_ms / 1000 if self._place == 0 else self._deadline - now
        return max(now, self._deadline - FALLBACK_SHARE * left_s)

    def _may_retry(self, ended: Failed, now: float, jitter: float) -> bool:
        """Set the pause before another try of the same model; False if moving on serves better."""
        asked, limits = ended.retry_after, self._limits
        if self._tries > self.plan.given.max_retries or (asked is not None and asked > limits.retry_after_s):
            return False
        drawn = limits.backoff_s + jitter * (self._longest_pause - limits.backoff_s)
        pause = max(asked or 0.0, drawn)
        if now + pause > self._latest_start or not self._traffic.spares(now):
            return False
        self._pause = pause
        self._longest_pause = min(PAUSE_FACTOR * drawn, limits.longest_backoff_s)
        return True

    def _move_on(self) -> None:
        """Step to the next member that may help: after an overflow, only one with a larger window."""
        rows, window = self.plan.rows, self.plan.pool.window
        repaired, self._repair, self._ask = self._repair is not None, None, self.plan.ask
        self._place += 1
        self._tries = 0
        self._longest_pause = PAUSE_FACTOR * self._limits.backoff_s
        if self._last is not None and self._last.kind is FaultKind.CONTEXT_OVERFLOW and not repaired:
            while self._place < len(rows) and window[rows[self._place]] <= window[self._last.row]:
                self._place += 1

    def _go_on_with(self, running: _Try) -> None:
        """Stand where a call stands that runs on alone."""
        self._place, self._tries, self._ask = running.place, 1, running.ask

    def _take(self, number: int | None) -> _Try:
        """The call of that number, or the last; it runs no more."""
        if len(self._running) == 1:
            return self._running.pop()
        ended = next((each for each in self._running if each.number == number), self._running[-1])
        self._running.remove(ended)
        return ended

    def _spend(self, tried: _Try, ended: Succeeded | Failed) -> None:
        """Take what a call used out of the room; of one that broke off, the most that it can have been."""
        broke_off = False
        if isinstance(ended, Failed) and not ended.final:
            broke_off = ended.touched or FAULTS[ended.kind].billed
        self._pay(tried, ended.usage, ended.day, broke_off=broke_off)

    def _pay(self, tried: _Try, usage: Usage | None, day: str | None, *, broke_off: bool) -> None:
        if not self.plan.ask.limited:
            return
        prices, nanos, tokens = self.plan.pool.prices_on(self.plan.rows[tried.place], day), 0, 0
        if usage is not None:
            nanos, tokens = usage_nanos(prices, usage), usage.input + usage.output
        if broke_off:
            worst_nanos, worst_tokens = self._worst(tried, prices)
            nanos, tokens = max(nanos, worst_nanos), max(tokens, worst_tokens)
        self.room = self.room.without(nanos, tokens)
        self.spent = self.spent.plus(Amount(nanos, tokens))

    def _worst(self, tried: _Try, prices: Prices) -> tuple[int, int]:
        """The most nano-dollars and tokens that a call can have used."""
        row, ask = self.plan.rows[tried.place], tried.ask
        high, cap = ask.high(row), tried.cap or ask.outlook.pool.max_output[row]
        return call_nanos(dearest_at(prices, high), high, cap) if prices else 0, high + cap

    def _finish(self, end: End) -> Done:
        self.end = end
        return Done(end)
