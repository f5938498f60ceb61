"""limits: its moving window, in memory, over two names a call as an account's limit and a key's are.

python -m benchmarks.peers.limits_window [names]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module

from .process import measure_plain

Pair = tuple[str, str]


def both() -> Callable[[Pair], bool]:
    limits = import_module("limits")  # installed in its own environment only
    window = limits.strategies.MovingWindowRateLimiter(limits.storage.MemoryStorage())
    limit = limits.RateLimitItemPerMinute(600)

    def admit(names: Pair) -> bool:
        return bool(window.hit(limit, names[0]) and window.hit(limit, names[1]))

    return admit


def main(names: int) -> None:
    measure_plain(both(), [(f"account:{number}", f"key:{number}") for number in range(names)])


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
