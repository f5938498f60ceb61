"""Server processes on a shared store: ``python -m tests.server.worker_child WORKERS STORE CALLS LEASE_S``.

Each writes its port and id, and appends a line to the file CALLS for each model call. The message ``wait 3`` is
answered after three seconds. An agent run with the task ``rounds 2`` calls a tool twice and answers. With ``rounds 2
stall 1``, the model call after the first tool takes a minute in the first process that makes it.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import anyio
import uvicorn

from routewright import Agent, Console, Model, Router, Settings, SqliteStorage
from routewright.backends.clock import SystemClock
from routewright.server import create_app
from routewright.testing import ScriptedProvider
from routewright.testing.provider import Line, Pause, Turn
from routewright.wire import Delta, Finish, Pricing, ToolDelta, UpstreamCall, Usage

from .server_processes import fork
from .uvicorn_server import SECRET

CALL_NANOS = 1_000_000
"""What each costs."""
STEP_S = 0.01
"""A tool and a model call of a run each take so long."""
MODEL = Model(
    id="one/model",
    quality=0.5,
    pricing_per_1m=Pricing(input_usd=0.0, output_usd=100.0),
    context_window=9_000,
    modalities=("text", "tool"),
)
_TASK = re.compile(r"rounds (\d+)(?: stall (\d+))?")


def main(workers: str, store: str, calls: str, lease_s: str) -> None:
    bound = fork(int(workers))
    journal = os.open(calls, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def reply(call: UpstreamCall) -> Turn:
        os.write(journal, b"called\n")
        if call.tools:
            return in_rounds(call)
        said = str(call.messages[-1].content)
        pause: list[Line] = [Pause(float(said.removeprefix("wait ")))] if said.startswith("wait ") else []
        return [Delta("Hello."), *pause, Usage(0, 10), Finish("stop")]

    def in_rounds(call: UpstreamCall) -> Turn:
        task = next(found for message in call.messages if (found := _TASK.match(str(message.content))))
        done = sum(message.role == "tool" for message in call.messages)
        stalls = task[2] is not None and int(task[2]) == done and is_first(f"{calls}.stalled")
        pause = Pause(60.0 if stalls else STEP_S)
        if done < int(task[1]):
            return [pause, ToolDelta(0, "{}", f"call_{done}", "note"), Usage(0, 10), Finish("tool_calls")]
        return [pause, Delta(f"done after {done}"), Usage(0, 10), Finish("stop")]

    async def note() -> str:
        await anyio.sleep(STEP_S)
        return "noted"

    provider = ScriptedProvider(reply, models=[MODEL], clock=SystemClock())
    storage = SqliteStorage(store, lease_s=float(lease_s))
    router = Router(providers=[provider], storage=storage, settings=Settings(preload_tokens=False))
    agent = Agent(router, tools=[note], params={"max_output_tokens": 10})
    app = create_app(router, Console(storage, secret=SECRET), agent=agent)
    uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, ws="none")).run(sockets=[bound])


def is_first(path: str) -> bool:
    """True once, whichever process asks."""
    try:
        Path(path).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
