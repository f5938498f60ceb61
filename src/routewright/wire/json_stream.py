"""Passes on a JSON object in pieces while it is valid, and completes one that turns out not to be."""

from __future__ import annotations

import re
from math import isinf

from msgspec import MsgspecError
from msgspec.json import encode

from .json_scan import MAX_DEPTH, decode, nests_deeper

INVALID = "INVALID_JSON"
"""Field with the text of tool arguments that are not a JSON object, as in Anthropic's own clients."""

_MOST_HELD = 4096
"""Characters that may wait for the rest of their token. More end the object, so that time stays linear."""
_DEEPEST = MAX_DEPTH - 8
"""Nested arrays and objects: clients send arguments back within bodies, which may nest ``MAX_DEPTH``."""
_TEXT = re.compile(
    r'(?:[^"\\\x00-\x1f]++|\\(?:["\\/bfnrt]|u(?:[0-9a-cefA-CEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}'
    r"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})))*+"
)
_TOKEN = re.compile(
    r'[ \t\n\r]*+(,?)[ \t\n\r]*+(?:([{}\[\]":])|'
    r"(?:(-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?+(?:[eE][+-]?[0-9]++)?+)|true|false|null)(?=[ \t\n\r,\]}]))"
)
_VALUE = '{["0'
"""Tokens that begin a value. ``0`` stands for a number, ``true``, ``false`` and ``null``."""
_NEXT = {"{": '"}', "[": f"{_VALUE}]", ":": _VALUE}
_AFTER = {"{": ",}", "[": ",]"}
_AFTER_COMMA = {",}": '"', ",]": _VALUE}
_ENDINGS = {"key": '": null', "text": '"', ":": ": null", _VALUE: "null"}
_CLOSE = str.maketrans("{[", "}]")


def complete_object(text: str) -> str:
    """Complete tool arguments: blank ones are ``{}``, and what is not a JSON object is in ``INVALID_JSON``."""
    try:
        tree = decode(text)
    except (MsgspecError, UnicodeError, RecursionError):
        tree = None
    is_shallow = text.count("[") + text.count("{") <= _DEEPEST or not nests_deeper(tree, _DEEPEST)
    if isinstance(tree, dict) and is_shallow:
        return text
    return encode({INVALID: text.encode(errors="replace").decode()}).decode() if text.strip() else "{}"


class JsonObjectStream:
    """Lets a JSON object through in pieces. ``add`` returns what may be sent, ``finish`` the rest; joined, they are the
    text itself, or a JSON object with the text in ``INVALID_JSON``::

        stream = JsonObjectStream()
        stream.add('{"order": "7')  # '{"order": "7'
        stream.finish()             # '", "order": false, "INVALID_JSON": "{\\\\"order\\\\": \\\\"7"}'
    """

    # A client shows a file edit while the model writes it, so valid text has to leave at once, although nobody knows
    # yet whether the rest will be valid. So what is sent is always the longest prefix that some valid object begins
    # with: numbers and words wait for the character after them, a comma for the next member, half an escape for its
    # other half, and the last brace for the end, since text may follow it. Whatever never becomes a token waits for
    # good. At the end the prefix is closed. A client may run a call whatever else is in it, and half a command or path
    # is another command or path: so a member that is cut off within a text, list or object is written again as
    # ``false``, which fits none of these (of two members of one name the last one counts).
    # test_any_pieces_join_to_one_json_object, test_a_member_that_is_cut_off_is_not_delivered

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._held = ""
        self._sent = 0
        """Characters."""
        self._open = ""
        """Brackets that are open."""
        self._state = "{"
        """Tokens that may follow, or ``key`` or ``text`` within a string."""
        self._key_at = 0
        """Where the last key of the outermost object begins."""

    @property
    def text(self) -> str:
        """All that was added."""
        return "".join(self._pieces)

    @property
    def is_whole(self) -> bool:
        """True if the text is a JSON object."""
        is_closed = self._open == "{" and "}" in self._state and self._held.strip(" \t\n\r") == "}"
        return is_closed and len(self._held) <= _MOST_HELD

    def add(self, piece: str) -> str:
        """Take a piece of the text and return what may be sent now."""
        self._pieces.append(piece)
        if len(self._held) > _MOST_HELD:
            return ""
        text = self._held + piece
        end = self._read(text)
        self._held = text[end:]
        self._sent += end
        return text[:end]

    def finish(self) -> str:
        """Return the rest to be sent."""
        text = self.text
        if self.is_whole:
            return self._held
        if not text.strip():
            return "{}"
        ending = _ENDINGS.get(self._state, "") + self._open[:0:-1].translate(_CLOSE)
        if self._state == "text" or len(self._open) > 1:
            key_end = _end_of_string(text, self._key_at + 1) + 1
            ending += f", {text[self._key_at : key_end]}: false"
        comma = "" if self._state in ("{", '"}') and len(self._open) < 2 else ", "
        return f'{"" if self._open else "{"}{ending}{comma}"{INVALID}": {encode(text).decode()}}}'

    def _read(self, text: str) -> int:
        """Read tokens. Returns where the last one ends that may be sent."""
        end = 0
        while True:
            if self._state in ("key", "text"):
                end = _end_of_string(text, end)
                if text[end : end + 1] != '"':
                    return end
                end += 1
                self._state = ":" if self._state == "key" else _AFTER[self._open[-1]]
            match = _TOKEN.match(text, end)
            if match is None:
                return end
            token = match[2] or "0"
            allowed = _AFTER_COMMA.get(self._state, "") if match[1] else self._state
            is_excessive = len(self._open) == _DEEPEST if token in "{[" else isinf(float(match[3] or 0))
            if token not in allowed or token + self._open == "}{" or is_excessive:
                return end
            end = match.end()
            if token in "{[":
                self._open += token
            elif token in "}]":
                self._open = self._open[:-1]
            elif token == '"' and self._open == "{" and "0" not in allowed:
                self._key_at = self._sent + end - 1
            string = "text" if "0" in allowed else "key"
            self._state = string if token == '"' else _NEXT.get(token) or _AFTER[self._open[-1]]


def _end_of_string(text: str, start: int) -> int:
    """Where the valid characters of a string end. The pattern matches an empty one, too."""
    return next(_TEXT.finditer(text, start)).end()
