"""Runs a model's program in Monty, an interpreter for a part of Python (extra ``sandbox``)."""

from __future__ import annotations

from functools import partial

import anyio.to_thread

from routewright.errors import require_extra
from routewright.protocols import Executed, ToolFailed

with require_extra("sandbox", __name__):
    import pydantic_monty as monty

START_S = 5.0
GRACE_S = 0.2
"""How long an interpreter may take to report a timeout before its process is killed."""


class MontySandbox:
    """Runs programs in Monty, an interpreter without a way to the host.

    >>> async def add() -> str:
    ...     return (await MontySandbox().execute("print(1 + 1)", timeout_s=5)).output

    A program has no files, network, processes, environment or third-party packages, and only a few modules of the
    standard library, such as ``math``, ``json``, ``re`` and ``datetime``. ``sleep`` returns at once. It runs in a
    process of its own, which starts in some milliseconds, on Linux, macOS and Windows alike. Programs that need more
    of Python need a ``CodeSandbox`` of the host.
    """

    def __init__(self, *, memory_bytes: int = 256 * 2**20, output_bytes: int = 64 * 2**10) -> None:
        """``memory_bytes`` limits the values of a program, ``output_bytes`` its output."""
        self._memory_bytes = memory_bytes
        self._output_bytes = output_bytes

    async def execute(self, code: str, timeout_s: float) -> Executed:
        """As ``protocols.CodeSandbox`` says. A cancelled program still ends in time."""
        return await anyio.to_thread.run_sync(partial(self._run, code, timeout_s), abandon_on_cancel=True)

    async def aclose(self) -> None:
        """Nothing to release."""

    def _run(self, code: str, timeout_s: float) -> Executed:
        printed = bytearray()
        limits: monty.ResourceLimits = {"max_feed_duration_secs": timeout_s, "max_memory": self._memory_bytes}
        reason = None

        def collect(stream: str, text: str) -> None:
            printed.extend(text.encode())
            if len(printed) > self._output_bytes:
                raise MemoryError

        try:
            with (
                monty.Monty(max_processes=1, checkout_timeout=START_S, request_timeout=timeout_s + GRACE_S) as pool,
                pool.checkout(limits=limits, os_policy={"sleep": "zero"}) as session,
            ):
                session.feed_run(code, print_callback=collect)
                exit_code = 0
        except monty.MontyCrashedError as error:
            reason = "timeout" if error.timed_out else "memory"  # its process was killed
        except (monty.MontySyntaxError, monty.MontyRuntimeError) as error:
            exit_code = 1
            if "time limit exceeded" in str(error):
                reason = "timeout"
            elif "memory limit exceeded" in str(error):
                reason = "memory"
            elif len(printed) <= self._output_bytes:
                printed += error.display()[: self._output_bytes].encode() + b"\n"
        except (OSError, RuntimeError) as error:  # its process did not start
            raise ToolFailed(f"code_exec is refused: Monty does not start ({error})") from error
        if len(printed) > self._output_bytes:
            reason = "output"
        text = printed[: self._output_bytes].decode("utf-8", "replace")
        return Executed(output=text, exit_code=None if reason else exit_code, reason=reason)
