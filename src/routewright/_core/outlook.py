"""What is to be expected of each model now: the pool's priors, replaced by what recent attempts showed."""

from __future__ import annotations

import numpy as np

from routewright.wire import HealthSnapshot, ModelHealth

from .pool import P90_PERCENT, Pool
from .scale import IntArray

LEAST_P90 = 256
"""No expected output is taken to be shorter where a budget has to hold it (contract 3)."""

_UNKNOWN = ModelHealth()


class Outlook:
    """Pool and health together. Lists and arrays follow the pool's rows."""

    def __init__(self, pool: Pool, health: HealthSnapshot) -> None:
        seen = [health.models.get(model_id, _UNKNOWN) for model_id in pool.ids]
        self.pool = pool
        self.health = health
        self.output: list[int] = [
            prior if h.output_tokens is None else min(h.output_tokens, window // 2)
            for h, prior, window in zip(seen, pool.output, pool.window, strict=True)
        ]
        """Expected length of an answer in tokens, thinking included."""
        self.output_p90: list[int] = [
            min(max(LEAST_P90, mean * P90_PERCENT // 100 if h.output_p90 is None else h.output_p90), most)
            for h, mean, most in zip(seen, self.output, pool.max_output, strict=True)
        ]
        self.ttft_ms: list[int] = [
            prior if h.ttft_ms is None else h.ttft_ms for h, prior in zip(seen, pool.ttft_ms, strict=True)
        ]
        self.ttft_p95_ms: list[int | None] = [h.ttft_p95_ms for h in seen]
        self.latency_p95_ms: list[int | None] = [h.latency_p95_ms for h in seen]
        self.us_per_token: list[int] = [
            prior if h.us_per_token is None else h.us_per_token
            for h, prior in zip(seen, pool.us_per_token, strict=True)
        ]
        self.stability = np.array([h.stability for h in seen], dtype=np.int64)
        self.open: dict[int, int] = {row: h.probe_at_ms or 0 for row, h in enumerate(seen) if h.open}
        """Rows that a breaker keeps calls away from, with the Unix millisecond of their next probe."""
        self._visible = np.array(
            [max(0, out - silent) for out, silent in zip(self.output, pool.silent, strict=True)], dtype=np.int64
        )
        self._output = np.array(self.output, dtype=np.int64)
        self._most_p90 = max(self.output_p90, default=0)
        self._least_room = min((w - out for w, out in zip(pool.window, self.output, strict=True)), default=0)
        self._least_window = min(pool.window, default=0)
        self._least_max_output = min(pool.max_output, default=0)
        self._output_p90 = np.array(self.output_p90, dtype=np.int64)
        self._ttft_ms = np.array(self.ttft_ms, dtype=np.int64)
        self._us_per_token = np.array(self.us_per_token, dtype=np.int64)

    def expected_output(self, cap: int | None) -> IntArray:
        """Expected tokens of an answer that may be ``cap`` long. Shape (n,)."""
        return self._output if cap is None else np.minimum(self._output, cap)

    def held_output(self, cap: int | None) -> IntArray:
        """Output tokens for which a budget must have room: the cap, else the 90th percentile. Shape (n,)."""
        return self._output_p90 if cap is None else np.full(len(self.pool), cap, dtype=np.int64)

    def leaves_room(self, input_tokens: int, cap: int | None) -> bool:
        """Whether every model's window holds this input and its answer."""
        if cap is None:
            return input_tokens <= self._least_room
        return input_tokens + cap <= self._least_window and cap <= self._least_max_output

    def costs_at_most(self, input_tokens: int, cap: int | None, picos: int) -> bool:
        """Whether so many pico-dollars pay for this input and its answer by whichever model, at first sight."""
        if self.pool.top is None:
            return False
        top_input, top_output = self.pool.top
        return input_tokens * top_input + (self._most_p90 if cap is None else cap) * top_output <= picos

    def latency_ms(self, cap: int | None) -> IntArray:
        """Expected time to the whole answer. What is thought in silence is part of the time to the first token."""
        streamed = self._visible if cap is None else np.minimum(self._visible, cap)
        return self._ttft_ms + self._us_per_token * streamed // 1000

    def expected_ms(self, row: int, cap: int | None) -> int:
        """As ``latency_ms``, of one row."""
        visible = int(self._visible[row])
        return self.ttft_ms[row] + self.us_per_token[row] * (visible if cap is None else min(visible, cap)) // 1000

    def output_within(self, row: int, latency_ms: int) -> int:
        """The longest answer that a row is expected to have written by then; negative if it writes none."""
        left_ms = latency_ms - self.ttft_ms[row]
        return -1 if left_ms < 0 else (left_ms * 1000 + 999) // max(1, self.us_per_token[row])
