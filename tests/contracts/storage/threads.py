"""Runs the same work in several threads, each with its own event loop, for the contract suites."""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Callable

import anyio

Meet = Callable[[], object]
"""Waits until all threads have called it."""


def run_in_threads(work: Callable[[int, Meet], Awaitable[None]], *, many: int, backend: str, patience_s: float) -> None:
    """Run ``work(number, meet)`` in threads, with very frequent thread switches.

    Raises the first failure, and ``AssertionError`` if a thread waits for more than ``patience_s``.
    """
    barrier, failed = threading.Barrier(many), list[Exception]()

    def run(number: int) -> None:
        try:
            anyio.run(work, number, lambda: barrier.wait(patience_s), backend=backend)
        except threading.BrokenBarrierError:
            return  # another thread failed, or waits for ever
        except Exception as error:
            failed.append(error)
            barrier.abort()

    threads = [threading.Thread(target=run, args=[number], daemon=True) for number in range(many)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(patience_s)
    finally:
        sys.setswitchinterval(interval)
    if failed:
        raise failed[0]
    assert not any(thread.is_alive() for thread in threads), "a thread waits for ever"
