"""Reads requests: checks them and bounds their tokens. Tells requests that are too large to be read on an event loop,
without reading them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from routewright._core.request.read import PLAIN_ROLES, Tags, add_tags, as_request
from routewright._core.structured_output import Form, with_output
from routewright._core.tokens.estimate import (
    MESSAGE_TOKENS,
    PRIMING_TOKENS,
    WHOLE_CHARACTERS,
    bounds_of,
    bounds_of_text,
)
from routewright.wire import Message, RouteRequest, TokenBounds
from routewright.wire.ids import TraceParent
from routewright.wire.json_scan import is_unicode

LARGE_CHARACTERS = WHOLE_CHARACTERS
"""Size of all texts that takes about a millisecond to read."""
LARGE_ITEMS = 200
"""Number of messages, parts, calls or tools that makes a request large."""


class Read(Struct, frozen=True, gc=False):
    """A checked request."""

    request: RouteRequest
    tokens: TokenBounds
    path: str = "/v1/route"
    """The HTTP path, part of its identity under an idempotency key."""
    traceparent: TraceParent | None = None
    """The caller's trace context."""
    body: Any = None
    """The original body in plain types, if it came by another vendor's API; None: the request itself."""
    repeats: bool = False
    """The prompt will be sent again with more appended."""
    is_remote: bool = False
    """A server received it, so it counts as sent by a caller with a key."""
    has_own_params: bool = False
    """Its ``params`` are those of the host's agent, not the caller's."""


def read_turns(value: object, traceparent: TraceParent | None) -> Read | None:
    """Fast path for a text or a list of text turns, dicts of role and content. None for anything else, and for large
    requests."""
    if type(value) is str:
        messages, texts = [Message("user", value)], [value]
    elif type(value) is list and 0 < len(value) <= LARGE_ITEMS:
        messages, texts = [], []
        for turn in value:
            if type(turn) is not dict or len(turn) != 2:
                return None
            role, content = turn.get("role"), turn.get("content")
            if type(role) is not str or role not in PLAIN_ROLES or type(content) is not str:
                return None
            messages.append(Message(PLAIN_ROLES[role], content))
            texts.append(content)
    else:
        return None
    if sum(map(len, texts)) > WHOLE_CHARACTERS:
        return None
    text = "".join(texts)
    if not (text.isascii() or is_unicode(text)):
        return None
    bounds = bounds_of_text(text, PRIMING_TOKENS + MESSAGE_TOKENS * len(messages))
    return Read(RouteRequest(messages, "cost", "balanced"), bounds, traceparent=traceparent)


class RawRequest(Struct, frozen=True, gc=False):
    """A request as passed, in any accepted shape, with options to merge."""

    request: object
    overrides: Mapping[str, Any]
    tags: Tags | None = None
    form: Form | None = None
    traceparent: TraceParent | None = None

    def read(self) -> Read:
        """Check the request and bound its tokens. Raises ``ValidationFailed``."""
        checked = as_request(self.request, self.overrides)
        if self.tags:
            checked = add_tags(checked, self.tags)
        if self.form is not None:
            checked = with_output(checked, self.form)
        return Read(checked, bounds_of(checked), traceparent=self.traceparent)

    @property
    def is_large(self) -> bool:
        """True if reading it takes more than a few milliseconds. Invalid requests count as small."""
        request, tools = self.request, self.overrides.get("tools")
        if type(request) is str:
            return len(request) > LARGE_CHARACTERS or (tools is not None and _is_long(tools))
        messages: object = request
        if type(request) is not list and isinstance(request, RouteRequest | Mapping):
            messages = _field(request, "messages")
            if _is_long(_field(request, "tools")):
                return True
        return _is_long(tools) or _is_long(messages) or _weighs(messages)


def _weighs(messages: object) -> bool:
    if not isinstance(messages, (list, tuple)):
        return False
    characters = 0
    for message in messages:
        content = message.get("content") if type(message) is dict else getattr(message, "content", None)
        if type(content) is str:
            characters += len(content)
        elif isinstance(content, (list, tuple)):
            if len(content) > LARGE_ITEMS:
                return True
            for part in content:
                for text in (_field(part, "text"), _field(_field(part, "image_url"), "url")):
                    characters += len(text) if type(text) is str else 0
        if characters > LARGE_CHARACTERS:
            return True
    return False


def _is_long(items: object) -> bool:
    return isinstance(items, (list, tuple)) and len(items) > LARGE_ITEMS


def _field(value: object, name: str) -> object:
    return value.get(name) if type(value) is dict else getattr(value, name, None)
