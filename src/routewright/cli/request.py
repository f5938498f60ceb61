"""Makes the route request that a command line describes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from routewright._core.request.json_scan import quoted
from routewright._core.request.problems import did_you_mean
from routewright._core.request.read import decode_request
from routewright.errors import InvalidJson, Problem, ValidationFailed
from routewright.wire import Budget, Fallback, ImagePart, ImageUrl, Message, Model, Params, Part, RouteRequest, TextPart

from .options import Arguments

S = TypeVar("S", bound=Struct)

_HOW = "give it as an argument, pipe it in, or name a file with @FILE"


def request_of(args: Arguments, models: Sequence[Model]) -> RouteRequest:
    """The request: from ``--request``, else from the prompt, with the options put over it.

    ``models`` are those that ``--provider`` chooses from. Raises ``ValidationFailed``.
    """
    request = RouteRequest(_messages(args)) if args.request is None else _whole(args)
    given = {
        "goal": args.goal,
        "strategy": args.strategy,
        "policy_id": args.policy,
        "models": args.model if args.provider is None else _of_providers(args.provider, models),
        "prefer": args.prefer,
        "fallback": _over(request.fallback, Fallback, models=args.fallback),
        "budget": _over(request.budget, Budget, max_cost_usd=args.max_cost, max_tokens=args.max_tokens),
        "params": _over(request.params, Params, max_output_tokens=args.max_output_tokens),
        "metadata": {**(request.metadata or {}), **dict(args.metadata)} or None,
        "timeout_ms": args.timeout_ms,
    }
    return replace(request, **{name: value for name, value in given.items() if value is not None})


def _over(base: S | None, kind: type[S], **given: Any) -> S | None:
    """A part of the request with options put over its fields, so that what the file promises besides them stays."""
    said = {name: value for name, value in given.items() if value is not None}
    return replace(kind() if base is None else base, **said) if said else base


def named_providers(wanted: Sequence[str], models: Sequence[Model]) -> list[Model]:
    """The models of some providers. Raises ``ValidationFailed`` for a provider that has none."""
    known = dict.fromkeys(model.provider for model in models)
    for name in wanted:
        if name not in known:
            hint = did_you_mean(name, known) or f"known: {', '.join(sorted(known))}"
            raise ValidationFailed.of(Problem("--provider", f"unknown provider {name!r}", hint))
    return [model for model in models if model.provider in wanted]


def _of_providers(wanted: Sequence[str], models: Sequence[Model]) -> list[str]:
    # a list of ids would call free offers by name, which are meant to be asked for one by one
    return [model.id for model in named_providers(wanted, models) if not model.free_tier]


def _whole(args: Arguments) -> RouteRequest:
    """The request of ``--request``."""
    beside = {"a prompt": args.prompt, "--file": args.file, "--system": args.system, "--image": args.image}
    for name, value in beside.items():
        if value:
            raise ValidationFailed.of(Problem("--request", f"holds the messages, so {name} has no place", ""))
    assert args.request is not None
    called = f"--request {args.request}"
    body = _read(args.request, called)
    try:
        return decode_request(body)
    except InvalidJson as error:
        raise InvalidJson(f"{called}: {error}") from error


def _messages(args: Arguments) -> list[Message]:
    text = _prompt(args)
    if not text.strip() and not args.image:
        raise ValidationFailed.of(Problem("prompt", "is empty", _HOW))
    asked = Message("user", _parts(text, args.image) if args.image else text)
    return [asked] if args.system is None else [Message("system", args.system), asked]


def _parts(text: str, images: Sequence[str]) -> list[Part]:
    for url in images:
        if not url.startswith(("https:", "http:", "data:")):
            problem = f"{quoted(url)} is no URL, and files are not read"
            raise ValidationFailed.of(Problem("--image", problem, "give https://... or data:image/png;base64,..."))
    said: list[Part] = [TextPart(text)] if text else []
    return [*said, *(ImagePart(ImageUrl(url)) for url in images)]


def _prompt(args: Arguments) -> str:
    """The text to ask, from wherever it stands."""
    if args.prompt is not None and args.file is not None:
        raise ValidationFailed.of(Problem("prompt", "is given twice", "give PROMPT or --file"))
    if args.file is not None:
        return _text(args.file, f"--file {args.file}")
    if args.prompt is None:
        if sys.stdin is None or sys.stdin.isatty():
            raise ValidationFailed.of(Problem("prompt", "is missing", _HOW))
        return _text("-", "standard input")
    if args.prompt.startswith("@"):
        return _text(args.prompt[1:], args.prompt)
    return _text("-", "standard input") if args.prompt == "-" else args.prompt


def _text(source: str, called: str) -> str:
    try:
        return _read(source, called).decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 text (byte {error.start})"
        raise ValidationFailed.of(
            Problem(called, problem, "convert it; an image goes into --image, as a URL")
        ) from error


def _read(source: str, called: str) -> bytes:
    """The bytes of a file, or of standard input where the name is ``-``."""
    if source == "-" and sys.stdin is None:
        raise ValidationFailed.of(Problem(called, "is closed", _HOW))
    try:
        return sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        hint = "to ask something that begins with '@', pipe it in" if called.startswith("@") else ""
        raise ValidationFailed.of(Problem(called, f"cannot be read: {error.strerror}", hint)) from error
