"""The expected figures of each model now: the pool's priors, updated by recent attempts."""

from __future__ import annotations

from collections.abc import Mapping
from operator import sub

import numpy as np

from routewright.wire import HealthSnapshot, ModelHealth, Overrun

from .logarithms import RATIOS, IntArray, scale
from .pool import Pool, p90_of

UNKNOWN = ModelHealth()
Workload = tuple[int, int]  # quarter octaves by which a workload's answers are longer and slower than usual
USUAL: Workload = (0, 0)


class Forecast:
    """Pool and health together. Lists follow the pool's rows. Immutable."""

    rows: IntArray | slice = slice(None)
    """The rows of the pool that columns are of."""

    def __init__(self, pool: Pool, health: HealthSnapshot) -> None:
        self.pool = pool
        self.health = health
        self.output: list[int] = pool.output.copy()  # expected tokens of an answer, reasoning included
        self.output_p90: list[int] = pool.output_p90.copy()
        self.ttft_ms: list[int] = pool.ttft_ms.copy()
        self.ttft_p95_ms: list[int | None] = [None] * len(pool)
        self.latency_p95_ms: list[int | None] = [None] * len(pool)
        self.us_per_token: list[int] = pool.us_per_token.copy()
        self.stability: list[int] = [UNKNOWN.stability] * len(pool)
        self.open: dict[int, int] = {}
        """Rows with an open circuit, with the Unix millisecond of their next probe."""
        self.overruns: dict[int, Overrun] = {}
        """Rows whose provider has billed more than was admitted."""
        self._columns: dict[str, IntArray] = {}
        self._least_room: int | None = None
        self._most_p90: int | None = None
        rows = {pool.row[model]: figures for model, figures in health.models.items() if model in pool.row}
        for row in sorted(rows):
            self._expect(row, rows[row])

    def with_health(self, health: HealthSnapshot, updates: Mapping[int, ModelHealth]) -> Forecast:
        """The forecast of a health that differs only in the rows of ``updates``."""
        forecast = Forecast.__new__(Forecast)
        forecast.pool = self.pool
        forecast.health = health
        for name in ("output", "output_p90", "ttft_ms", "ttft_p95_ms", "latency_p95_ms", "us_per_token", "stability"):
            setattr(forecast, name, getattr(self, name).copy())
        forecast.open = {row: at for row, at in self.open.items() if row not in updates}
        forecast.overruns = self.overruns.copy()  # they only grow
        for row, model_health in updates.items():
            forecast._expect(row, model_health)
        forecast._columns = {}
        forecast._least_room = forecast._most_p90 = None
        forecast.open = dict(sorted(forecast.open.items()))
        return forecast

    def _expect(self, row: int, health: ModelHealth) -> None:
        """Set a row's figures from its health."""
        pool = self.pool
        output = health.output_tokens
        p90 = health.output_p90
        times_ms = [health.ttft_ms, health.ttft_p95_ms, health.latency_p95_ms]
        if pool.usual_output is not pool.output:  # health describes calls without a requested effort
            output = None if output is None else output * pool.output[row] // pool.usual_output[row]
            p90 = None if p90 is None else p90 * pool.output[row] // pool.usual_output[row]
            times_ms = [None if ms is None else max(1, ms + pool.delay_ms[row]) for ms in times_ms]
        mean = self.output[row] = pool.output[row] if output is None else min(output, pool.window[row] // 2)
        maximum = pool.max_output[row]
        least = pool.least_p90[row]
        self.output_p90[row] = p90_of(mean, maximum, least) if p90 is None else min(max(least, p90), maximum)
        self.ttft_ms[row] = pool.ttft_ms[row] if times_ms[0] is None else times_ms[0]
        self.ttft_p95_ms[row] = times_ms[1]
        self.latency_p95_ms[row] = times_ms[2]
        self.us_per_token[row] = pool.us_per_token[row] if health.us_per_token is None else health.us_per_token
        self.stability[row] = health.stability
        if health.open:
            self.open[row] = health.probe_at_ms or 0
        if health.overrun is not None:
            self.overruns[row] = health.overrun

    def column(self, name: str) -> IntArray:
        """One of the integer lists as an array. Shape (n,)."""
        if (column := self._columns.get(name)) is None:
            column = self._columns[name] = np.array(getattr(self, name), dtype=np.int64)
        return column

    def expected_output(self, cap: int | None, work: Workload = USUAL) -> IntArray:
        """Expected tokens of an answer capped at ``cap``. Shape (n,)."""
        output = scale(self.column("output"), work[0])
        return output if cap is None else np.minimum(output, cap)

    def held_output(self, cap: int | None) -> IntArray:
        """Output tokens for which a budget must have room: the cap, else the 90th percentile. Shape (n,)."""
        return self.column("output_p90") if cap is None else np.full(len(self.pool), cap, dtype=np.int64)

    def least_room(self, cap: int | None) -> int:
        """Input tokens that fit every window beside the answer; negative if an answer alone is too long."""
        if cap is not None:
            return self.pool.least_window - cap if cap <= self.pool.least_max_output else -1
        if self._least_room is None:
            self._least_room = min(map(sub, self.pool.window, self.output), default=0)
        return self._least_room

    @property
    def most_p90(self) -> int:
        """The largest 90th percentile of all rows, in tokens."""
        if self._most_p90 is None:
            self._most_p90 = max(self.output_p90, default=0)
        return self._most_p90

    def costs_at_most(self, input_tokens: int, cap: int | None, picos: int) -> bool:
        """True if ``picos`` certainly pay for this input and its answer with any model."""
        if self.pool.top is None:
            return False
        top_input, top_output = self.pool.top
        return input_tokens * top_input + (self.most_p90 if cap is None else cap) * top_output <= picos

    def latency_ms(self, cap: int | None, work: Workload = USUAL) -> IntArray:
        """Expected time to the whole answer, shape (n,). Silent reasoning counts in the time to the first token."""
        visible = scale(
            np.maximum(0, self.column("output") - np.array(self.pool.silent, dtype=np.int64)[self.rows]), work[0]
        )
        streamed = visible if cap is None else np.minimum(visible, cap)
        return scale(self.column("ttft_ms") + self.column("us_per_token") * streamed // 1000, work[1])

    def expected_ms(self, row: int, cap: int | None, work: Workload = USUAL) -> int:
        """``latency_ms`` of one row."""
        visible = scale(max(0, self.output[row] - self.pool.silent[row]), work[0])
        streamed = visible if cap is None else min(visible, cap)
        return scale(self.ttft_ms[row] + self.us_per_token[row] * streamed // 1000, work[1])

    def output_within(self, row: int, latency_ms: int, work: Workload = USUAL) -> int:
        """The most output tokens a row is expected to write within ``latency_ms``; negative if none."""
        left_ms = (latency_ms << 10) // RATIOS[work[1]] - self.ttft_ms[row]
        return -1 if left_ms < 0 else (left_ms * 1000 + 999) // max(1, self.us_per_token[row])
