"""Which Python functions does a call enter, in all threads? Functions that are resumed are entered again."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple, Self

import routewright

OURS = str(Path(routewright.__file__).parent) + os.sep

Call = Callable[[], Awaitable[object]]


class Entered(NamedTuple):
    """One function, entered or resumed."""

    code: CodeType
    depth: int
    thread: str

    @property
    def is_ours(self) -> bool:
        return self.code.co_filename.startswith(OURS)

    def __str__(self) -> str:
        path = self.code.co_filename
        short = path.removeprefix(OURS) if self.is_ours else "/".join(Path(path).parts[-2:])
        thread = "" if self.thread == "MainThread" else f"[{self.thread}] "
        return f"{self.depth:3} {'  ' * self.depth}{thread}{short}:{self.code.co_qualname}"


class Profile:
    """Profiles calls, and the threads that are started inside ``with``."""

    def __init__(self, harness: str, *, but: Callable[..., object]) -> None:
        """``harness``: the file that makes the calls. Its functions do not count, ``but`` this one."""
        self._harness = (__file__, harness)
        self._counted = but.__code__
        self._entered: list[Entered] = []
        self._on = False

    def __enter__(self) -> Self:
        self._before = threading.getprofile()
        threading.setprofile(self._hear)
        return self

    def __exit__(self, *error: object) -> None:
        threading.setprofile(self._before)

    async def of(self, call: Call, flush: Call) -> list[Entered]:
        """What the call enters, and its background until ``flush`` has returned."""
        before, self._entered, self._on = sys.getprofile(), [], True
        sys.setprofile(self._hear)
        try:
            await call()
            await _finish(flush)
        finally:
            sys.setprofile(before)
            self._on = False
        return self._entered

    def _hear(self, frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if event != "call" or not self._on or (code.co_filename in self._harness and code is not self._counted):
            return
        depth, outer = 0, frame.f_back
        while outer is not None and outer.f_code is not Profile.of.__code__:
            if outer.f_code is _finish.__code__:
                return
            depth, outer = depth + 1, outer.f_back
        self._entered.append(Entered(code, depth, threading.current_thread().name))


async def _finish(flush: Call) -> None:
    """Nothing under it counts: the frames of ``flush`` itself are no part of the call."""
    await flush()
