"""What an agent run keeps between its steps, between processes and for the next run: its checkpoint, and the turns of
its conversation. Only a checkpoint that must exist before the next step raises; all else is logged."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from msgspec import Struct, json
from msgspec.structs import replace

from routewright import wire
from routewright.errors import NotFound, RouterError

from .storage import GuardedStorage
from .trace_log import TraceLog

CHECKPOINT_S = 86_400.0
"""How long the checkpoint of an unfinished run is kept."""
CONVERSATION_S = 30 * 86_400.0
MOST_TURNS = 100
_log = logging.getLogger(__name__)
_decode = json.Decoder(wire.Checkpoint).decode
_decode_turns = json.Decoder(list[wire.Message]).decode


class Resumption(Struct, frozen=True, kw_only=True):
    """The client's input for resuming a run."""

    state: wire.Checkpoint
    results: Mapping[str, str] = {}
    approved: Collection[str] = ()


class Checkpoints:
    """The stored state of one run."""

    def __init__(self, storage: GuardedStorage, log: TraceLog, caller: wire.Caller, request: wire.AgentRequest) -> None:
        self._storage = storage
        self._log = log
        self._caller = caller
        self._request = request
        self.is_stored = False
        """The storage has a checkpoint."""

    async def keep(self, state: wire.Checkpoint) -> None:
        """Store the state after a step. Raises ``RouterError``."""
        self.is_stored = True
        until = self._log.clock.time() + CHECKPOINT_S
        await self._put(state.trace_id, json.encode(state), until, self._request.idempotency_key)

    async def try_keep(self, state: wire.Checkpoint) -> None:
        """Store the state, if possible."""
        with _if_possible(state.trace_id):
            await self.keep(state)

    async def forget(self, trace_id: str) -> None:
        """Remove the checkpoint, if possible."""
        with _if_possible(trace_id):
            await self._put(trace_id, None, 0.0)

    async def reload(self, resumed: Resumption) -> wire.Checkpoint:
        """The state of a run to resume, read after its key was taken. Raises ``NotFound``."""
        before = resumed.state
        trace_id = before.trace_id
        state = await checkpoint_of(self._storage, self._caller, trace_id)
        trace = await self._log.find(self._caller, trace_id)
        has_ended = trace is not None and trace.status in ("completed", "budget_exceeded")
        if has_ended or (before.status == "pending" and (state.status, state.steps) != (before.status, before.steps)):
            raise NotFound(f"{trace_id} cannot be resumed: it has continued since it was paused")
        self.is_stored = True
        return state

    async def interrupted(self, key: str) -> wire.Checkpoint | None:
        """The state of an interrupted run of this very request. Any other run loses the key: one of another request,
        and one waiting for its client, since the answer kept under the key has expired."""
        body = await self._read(wire.AgentState(claim=key, environment=self._caller.environment))
        if body is None:
            return None
        state = _decode(body)
        if state.status == "running" and identity_of(state.request) == identity_of(self._request):
            self.is_stored = True
            return state
        await self._put(state.trace_id, body, state.created_at + CHECKPOINT_S)
        return None

    # The conversation that ``metadata.conversation`` names

    async def conversation(self) -> list[wire.Message]:
        """The turns so far."""
        name = self._conversation_name
        body = None if name is None else await self._read(wire.AgentState(name, environment=self._caller.environment))
        return [] if body is None else _decode_turns(body)

    async def remember(self, trace_id: str, output: str) -> None:
        """Add the task and its answer to the conversation, if possible."""
        name = self._conversation_name
        if name is None:
            return
        turn = [wire.Message("user", self._request.task), wire.Message("assistant", output)]
        with _if_possible(trace_id):
            turns = [*await self.conversation(), *turn][-MOST_TURNS:]
            await self._put(name, json.encode(turns), self._log.clock.time() + CONVERSATION_S)

    @property
    def _conversation_name(self) -> str | None:
        name = (self._request.metadata or {}).get("conversation")
        return f"conversation:{name}" if isinstance(name, str) and name else None

    async def _read(self, query: wire.AgentState) -> bytes | None:
        body: bytes | None = await self._storage.read(self._caller.account, query)
        return body

    async def _put(self, id: str, body: bytes | None, until: float, claim: str | None = None) -> None:
        write = wire.PutAgentState(id, self._caller.environment, body, until, claim)
        await self._storage.apply(self._caller.account, [write])


@contextmanager
def _if_possible(trace_id: str) -> Iterator[None]:
    try:
        yield
    except RouterError as error:
        _log.warning("run %s: cannot store its state: %s", trace_id, error)


async def checkpoint_of(storage: GuardedStorage, caller: wire.Caller, trace_id: str) -> wire.Checkpoint:
    """The state of a resumable run. Raises ``NotFound``."""
    query = wire.AgentState(trace_id, environment=caller.environment)
    body: bytes | None = await storage.read(caller.account, query) if trace_id.startswith("tr_") else None
    if body is None:
        raise NotFound(
            f"{trace_id} cannot be resumed: no such run of this account is paused or interrupted. "
            "It may have ended, be older than a day, or belong to another account (pass caller=)"
        )
    return _decode(body)


def identity_of(request: wire.AgentRequest) -> object:
    """Equal for requests that may share an idempotency key."""
    content: object = json.decode(json.encode(replace(request, idempotency_key=None)))
    return content
