"""The tool calls of one answer, told apart however their host numbers them, each with an id of its own."""

from __future__ import annotations

from typing import Any

import msgspec

from routewright.wire import ToolDelta


class Function(msgspec.Struct):
    """The function of a piece."""

    name: str | None = None
    arguments: Any = None


class Piece(msgspec.Struct):
    """A piece of a tool call, or the whole of it, as it was sent."""

    index: int | None = None
    id: str | None = None
    function: Function | None = None


class _Begun:
    __slots__ = ("id", "index")

    def __init__(self, index: int) -> None:
        self.index = index
        self.id: str | None = None
        """As the host says it."""


class ToolCalls:
    """Turns pieces into ``ToolDelta``: the id is in the first, and in a later one where the host names it only then."""

    def __init__(self) -> None:
        self._latest: dict[int, _Begun] = {}
        """By the index that the host gives."""
        self._last = 0
        """That index of the call that began last."""
        self._indices: set[int] = set()
        self._free = 0
        """Above all indices that are taken."""
        self._ids: set[str] = set()

    def __bool__(self) -> bool:
        return bool(self._latest)

    def add(self, piece: Piece) -> ToolDelta:
        """Say what a piece adds to which call."""
        function = piece.function or Function()
        at = self._unnumbered(piece, function) if piece.index is None else piece.index
        call, id = self._latest.get(at), ""
        if call is None or _begins_another(piece, function, call):
            call = self._begin(at)
            id = self._own(piece.id or f"call_{call.index}", call)
        elif piece.id and call.id is None:
            id = self._own(piece.id, call)
        call.id = call.id or piece.id or None
        return ToolDelta(call.index, _arguments(function.arguments), id, function.name or "")

    def _unnumbered(self, piece: Piece, function: Function) -> int:
        """For a host that sends no index: a piece with an id or name begins a call, another goes on with the last."""
        return self._free if piece.id or function.name or not self._latest else self._last

    def _begin(self, at: int) -> _Begun:
        index = self._free if at in self._indices else at
        self._indices.add(index)
        self._free = max(self._free, index + 1)
        self._last = at
        call = self._latest[at] = _Begun(index)
        return call

    def _own(self, id: str, call: _Begun) -> str:
        """The id, changed where another call has it: results are told apart by it."""
        while id in self._ids:
            id = f"{id}_{call.index}"
        self._ids.add(id)
        return id


def _begins_another(piece: Piece, function: Function, call: _Begun) -> bool:
    """Some hosts give all calls the index 0. Others give each piece an id of its own, but a name only to the first."""
    return bool(function.name and piece.id and call.id and piece.id != call.id)


def _arguments(arguments: Any) -> str:
    if isinstance(arguments, str):
        return arguments
    return "" if arguments is None else msgspec.json.encode(arguments).decode()
