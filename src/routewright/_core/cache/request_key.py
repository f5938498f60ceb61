"""Keys of cached answers: partition and digest of a request, and matching of entries with a selection (contract 6)."""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

from msgspec import DecodeError, json

from routewright.wire import CacheEntry, CacheSelection, Caller, Message, RouteRequest, TextPart

FORMAT = 1  # version of keys and entries; versions share no entries
LONGEST_QUESTION = 8_000  # characters; longer questions only match identical requests
_encode = json.Encoder(order="deterministic").encode  # JSON, because MessagePack does not take large integers


class Keys(NamedTuple):
    """Look-up keys of a request."""

    partition: bytes
    key: bytes
    question: str | None
    """The last user turn. None: only an identical request matches."""


def keys_of(
    request: RouteRequest, caller: Caller, policy_version: str, candidates: bytes, embedder: str, namespace: str | None
) -> Keys:
    """Keys of a request after its policy, with aliases resolved. ``candidates`` is a digest of the models it may
    call."""
    last = request.messages[-1]
    before = request.messages[:-1]
    question = _text(last) if last.role == "user" and request.tools is None else None
    if not question or len(question) > LONGEST_QUESTION or not all(_text(message) is not None for message in before):
        question = None
    plain = caller.account, caller.environment, namespace, policy_version, request.goal, request.strategy, candidates
    models = None if request.models is None else sorted(request.models)
    chain = None if request.fallback is None else request.fallback.models
    rest = models, request.prefer, chain, request.params, request.tools, request.tool_choice, before, last.name
    partition = sha256(_encode((FORMAT, *plain, embedder, *rest))).digest()[:16]
    return Keys(partition, sha256(partition + _encode(last)).digest()[:16], question)


def _text(message: Message) -> str | None:
    """The text of a turn. None: it contains anything else."""
    content = message.content
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    texts = [part.text for part in content if isinstance(part, TextPart)]
    return "\n".join(texts) if len(texts) == len(content) else None


def selects(selection: CacheSelection, entry: CacheEntry) -> bool:
    """True if an entry matches a selection."""
    return (
        entry.account == selection.account
        and selection.environment in (None, entry.environment)
        and selection.key in (None, entry.key)
        and selection.partition in (None, entry.partition)
        and selection.id in (None, entry.id)
        and selection.namespace in (None, entry.namespace)
        and (selection.created_before is None or entry.created_at < selection.created_before)
        and (selection.metadata is None or is_tagged(entry.metadata, selection.metadata))
    )


def is_tagged(metadata: bytes | None, tag: tuple[str, str | float | bool]) -> bool:
    """True if metadata has this key with this value. ``true`` is not 1."""
    try:
        fields = json.decode(metadata or b"{}")
    except DecodeError:
        return False
    key, value = tag
    if not isinstance(fields, dict) or key not in fields:
        return False
    stored = fields[key]
    return isinstance(stored, bool) is isinstance(value, bool) and bool(stored == value)
