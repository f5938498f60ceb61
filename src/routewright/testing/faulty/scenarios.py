"""Failures of providers, as data: what the server does, and the kind of fault that a client reports.

One row per fault, plain and streamed. ``Script`` serves requests with them, one by one. How the Router reacts to each
kind is in the table of faults (``_core/attempts/faults.py``).
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from routewright.errors import Problem, ValidationFailed
from routewright.testing.provider import Pause
from routewright.wire import FaultKind, JsonObject
from routewright.wire.problems import did_you_mean, shown

from .steps import FOREVER, Break, Connection, Drip, Head, Repeat, Step

SLOW_S = 60.0
"""Longer than any wait for a first token."""
DAY_S = 86_400.0
ANSWER = "All is well."
"""What a good answer says."""
USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}
DONE = b"data: [DONE]\n\n"
LETTERS = b"a" * (1 << 16)
JSON = Head(200, {"content-type": "application/json"})
EVENTS = Head(200, {"content-type": "text/event-stream"})


# chat completions, good and bad


def document(text: object = ANSWER, *, finish: str | None = "stop", usage: object = USAGE, **message: object) -> bytes:
    """A whole answer. ``usage=None`` leaves it out."""
    content = {"role": "assistant", "content": text} | message
    usage_field = {} if usage is None else {"usage": usage}
    choice = {"index": 0, "message": content, "finish_reason": finish}
    return json.dumps(_named("chat.completion") | {"choices": [choice]} | usage_field).encode()


def delta(text: object = None, *, finish: str | None = None, **more: object) -> bytes:
    """An event with a piece of an answer."""
    content = ({} if text is None else {"content": text}) | more
    return event({"choices": [{"index": 0, "delta": content, "finish_reason": finish}]})


def event(content: Any) -> bytes:
    """An event of a stream."""
    return f"data: {json.dumps(_named('chat.completion.chunk') | content)}\n\n".encode()


def tokens(text: str = ANSWER) -> bytes:
    """A text, an event a word, after the one that says who speaks."""
    return delta("", role="assistant") + b"".join(map(delta, re.findall(r"\S+\s*|\s+", text)))


def ending(finish: str | None = "stop", usage: object = USAGE) -> bytes:
    """How a stream ends. ``usage=None`` leaves it out."""
    return delta(finish=finish) + (b"" if usage is None else event({"choices": [], "usage": usage})) + DONE


def error(message: str, code: str | int, type: str = "invalid_request_error") -> bytes:
    """What an error says, as the body of an answer."""
    return json.dumps({"error": {"message": message, "type": type, "code": code}}).encode()


def _named(kind: str) -> JsonObject:
    return {"id": "c1", "object": kind, "created": 1, "model": "m"}


_WHOLE = document()
_HALF = _WHOLE[: len(_WHOLE) // 2]
_STREAM = (tokens(), ending())
_BUSY = error("Overloaded", "overloaded_error", "overloaded_error")
_HTML = b"<html><body>Please log in.</body></html>"
_GIB = (1 << 30) // len(LETTERS)
_TEN_MB = (10 << 20) // len(LETTERS)


# scenarios


class Play(NamedTuple):
    """One form of a fault: plain or streamed."""

    steps: Sequence[Step]
    kind: FaultKind | None
    """What the provider raises; ``timeout`` if only a time limit ends it. None: it answers."""
    finish: str = "stop"
    """The finish reason. The Router treats ``content_filter`` as a refusal, and reports unknown ones as ``other``."""


class Scenario(NamedTuple):
    """One fault."""

    name: str
    what: str
    """What happens, for the reference."""
    plain: Play
    streamed: Play
    retry_after: float | None = None
    """The ``Retry-After`` of the fault, in seconds."""

    def play(self, stream: bool) -> Play:
        """The form for a call."""
        return self.streamed if stream else self.plain


def good(answer: str) -> Scenario:
    """No fault at all."""
    return _answered("good", "all is well", document(answer), tokens(answer), ending())


def _answered(name: str, summary: str, plain: bytes, *events: bytes, finish: str = "stop") -> Scenario:
    """An answer that is no fault, as a document and as the pieces of a stream."""
    return Scenario(name, summary, Play((JSON, plain), None, finish), Play((EVENTS, *events), None, finish))


def _alike(name: str, summary: str, kind: FaultKind | None, *steps: Step, retry_after: float | None = None) -> Scenario:
    """The same for a plain and a streamed call."""
    play = Play(steps, kind)
    return Scenario(name, summary, play, play, retry_after)


def _status(
    status: int, name: str, summary: str, kind: FaultKind, body: bytes, delay_s: float | None = None, **headers: str
) -> Scenario:
    """An answer with another status than 200."""
    header_fields = {key.replace("_", "-"): value for key, value in headers.items()}
    head = Head(status, {"content-type": "application/json"} | header_fields)
    return _alike(name, f"{status}: {summary}", kind, head, body, retry_after=delay_s)


def _limited(name: str, delay_s: float | None, **headers: str) -> Scenario:
    body = error("Rate limit reached for requests", "rate_limit_exceeded", "requests")
    summary = f"`Retry-After: {headers['retry_after']}`" if headers else "too many requests"
    return _status(429, name, summary, FaultKind.RATE_LIMITED, body, delay_s, **headers)


def _usage(name: str, summary: str, usage: object) -> Scenario:
    return _answered(f"usage_{name}", summary, document(usage=usage), tokens(), ending(usage=usage))


def _ends(name: str, summary: str, reason: str, common: str) -> Scenario:
    return _answered(name, summary, document(finish=reason), tokens(), ending(reason), finish=common)


def _calls(name: str, summary: str, *calls: tuple[str, str]) -> Scenario:
    """Tool calls, each an id and arguments."""
    tool_calls = [
        {"index": at, "id": id, "type": "function", "function": {"name": "look", "arguments": arguments}}
        for at, (id, arguments) in enumerate(calls)
    ]
    plain = document(None, finish="tool_calls", tool_calls=tool_calls)
    pieces = (delta(tool_calls=[call]) for call in tool_calls)
    return _answered(name, summary, plain, *pieces, ending("tool_calls"), finish="tool_calls")


def _long(encoding: str = "") -> tuple[Play, Play]:
    """1 GiB of letters, perhaps compressed."""
    start = document("LETTERS").partition(b"LETTERS")[0]
    event_of_letters = delta(LETTERS.decode())
    plain = _packed(start, LETTERS) if encoding else (start, Repeat(LETTERS, _GIB))
    streamed = _packed(b"", event_of_letters) if encoding else (Repeat(event_of_letters, _GIB),)
    packed = {"content-encoding": encoding} if encoding else {}
    heads = [Head(200, dict(head.headers) | packed) for head in (JSON, EVENTS)]
    return Play((heads[0], *plain), FaultKind.MALFORMED), Play((heads[1], *streamed), FaultKind.MALFORMED)


def _packed(start: bytes, piece: bytes) -> tuple[Step, ...]:
    """A start and 1 GiB of one piece in gzip. After a full flush equal input compresses to equal output."""
    packer = zlib.compressobj(wbits=16 + zlib.MAX_WBITS)
    head = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(piece) + packer.flush(zlib.Z_FULL_FLUSH)
    return head, Repeat(block, _GIB)


def _one_line() -> tuple[Play, Play]:
    before, after = document("LETTERS").split(b"LETTERS")
    first, last = delta("LETTERS").split(b"LETTERS")
    letters = Repeat(LETTERS, _TEN_MB)
    plain = Play((JSON, before, letters, after), None)
    return plain, Play((EVENTS, first, letters, last, ending()), FaultKind.MALFORMED)


def _with_length(head: Head, *pieces: bytes, more: int) -> tuple[Step, ...]:
    """A body with a content-length that is too large."""
    length = sum(map(len, pieces)) + more
    return Head(200, dict(head.headers) | {"content-length": str(length)}), *pieces, Break.CLOSE


_UNREACHED = (
    _alike("connect_refused", "nobody listens", FaultKind.CONNECT, Connection.REFUSED),
    _alike("dns_failure", "the name has no address", FaultKind.CONNECT, Connection.UNRESOLVED),
    _alike("bad_certificate", "the certificate is nobody's", FaultKind.CONNECT, Connection.UNTRUSTED),
    _alike("handshake_stall", "the TLS handshake is never answered", FaultKind.CONNECT, Connection.MUTE),
)  # fmt: skip
"""The connection fails."""

_STATUSES = (
    _status(400, "bad_request", "a parameter that is not known", FaultKind.REQUEST,
        error("Unrecognized request argument", "unknown_parameter")),
    _status(400, "context_overflow", "the prompt is too long", FaultKind.CONTEXT_OVERFLOW,
        error("This model's maximum context length is 8192 tokens", "context_length_exceeded")),
    _status(400, "moderation", "the prompt is refused", FaultKind.REFUSED,
        error("Your request was rejected by our safety system", "content_policy_violation")),
    _status(401, "unauthorized", "the key is not known", FaultKind.AUTH,
        error("Incorrect API key provided", "invalid_api_key")),
    _status(403, "forbidden", "not in this country", FaultKind.AUTH,
        error("Country not supported", "unsupported_country")),
    _status(404, "not_found", "no such model", FaultKind.MODEL_NOT_FOUND,
        error("The model does not exist", "model_not_found")),
    _status(408, "request_timeout", "the vendor waited in vain", FaultKind.TIMEOUT,
        error("Request timed out", "timeout")),
    _status(413, "too_large", "the body is too long", FaultKind.CONTEXT_OVERFLOW, b"Payload too large"),
    _limited("rate_limited", None),
    _limited("rate_limited_zero", 0.0, retry_after="0"),
    _limited("rate_limited_second", 1.0, retry_after="1"),
    _limited("rate_limited_day", DAY_S, retry_after="86400"),
    _limited("rate_limited_eternity", DAY_S, retry_after="1e9"),
    _limited("rate_limited_date", 30.0,
        date="Sat, 21 Nov 2026 10:00:00 GMT", retry_after="Sat, 21 Nov 2026 10:00:30 GMT"),
    _limited("rate_limited_negative", None, retry_after="-5"),
    _limited("rate_limited_garbage", None, retry_after="soon"),
    _status(500, "server_error", "an error inside", FaultKind.SERVER,
        error("The server had an error", "server_error", "server_error")),
    _alike("bad_gateway", "502: a page in HTML", FaultKind.SERVER,
        Head(502, {"content-type": "text/html"}), b"<html>Bad gateway</html>"),
    _status(503, "unavailable", "not in service", FaultKind.SERVER,
        error("The engine is overloaded", "service_unavailable")),
    _status(529, "overloaded", "too busy", FaultKind.SERVER, _BUSY),
    _alike("error_body_stalls", "503: and the body that would say why never comes", FaultKind.SERVER,
        Head(503, {"content-type": "application/json"}), Pause(FOREVER)),
    _alike("redirect", "307: elsewhere", FaultKind.MALFORMED, Head(307, {"location": "http://elsewhere.invalid/"})),
)  # fmt: skip
"""The status reports it."""

_BROKEN = (
    _alike("reset_before_headers", "the connection is reset before the headers", FaultKind.RESET, Break.RESET),
    Scenario("reset_mid_body", "the connection is reset in the middle of the answer",
        Play((JSON, _HALF, Break.RESET), FaultKind.RESET),
        Play((EVENTS, tokens(), Break.RESET), FaultKind.RESET)),
    Scenario("short_body", "the body ends before its content-length",
        Play(_with_length(JSON, _WHOLE, more=100), FaultKind.RESET),
        Play(_with_length(EVENTS, *_STREAM, more=100), None)),
    _alike("silent", "the request is taken, and nothing comes", FaultKind.TIMEOUT, Pause(FOREVER)),
    Scenario("slow_first_token", "the answer begins after a minute",
        Play((Pause(SLOW_S), JSON, _WHOLE), FaultKind.TIMEOUT),
        Play((EVENTS, Pause(SLOW_S), *_STREAM), FaultKind.TIMEOUT)),
    Scenario("slow_loris", "a byte a second",
        Play((JSON, Drip(_WHOLE, 1.0)), FaultKind.TIMEOUT),
        Play((EVENTS, Drip(b"".join(_STREAM), 1.0)), FaultKind.TIMEOUT)),
    Scenario("byte_dribble", "a byte at a time, without a pause",
        Play((JSON, Drip(_WHOLE)), None), Play((EVENTS, Drip(b"".join(_STREAM))), None)),
    Scenario("stall_after_headers", "nothing follows the headers",
        Play((JSON, Pause(FOREVER)), FaultKind.TIMEOUT), Play((EVENTS, Pause(FOREVER)), FaultKind.TIMEOUT)),
    Scenario("stall_mid_answer", "nothing follows the first half of the answer",
        Play((JSON, _HALF, Pause(FOREVER)), FaultKind.TIMEOUT),
        Play((EVENTS, tokens(), Pause(FOREVER)), FaultKind.TIMEOUT)),
    Scenario("stall_after_end", "the stream is whole, and its connection is kept open",
        Play((JSON, _WHOLE), None), Play((EVENTS, *_STREAM, Pause(FOREVER)), None)),
    Scenario("comments", "comments without end, and never a token; plain: spaces",
        Play((JSON, Repeat(b" ", every_s=5.0)), FaultKind.TIMEOUT),
        Play((EVENTS, Repeat(b": ping\n\n", every_s=5.0)), FaultKind.TIMEOUT)),
)  # fmt: skip
"""The connection breaks, or nothing comes."""

_UNFINISHED = (
    Scenario("truncated", "the answer stops in its midst, and the body ends well",
        Play((JSON, _HALF), FaultKind.MALFORMED), Play((EVENTS, tokens()), FaultKind.TRUNCATED)),
    Scenario("no_end_marker", "a finish reason, and no `[DONE]`",
        Play((JSON, _WHOLE), None), Play((EVENTS, tokens(), delta(finish="stop")), None)),
    Scenario("no_finish_reason", "`[DONE]`, and no finish reason",
        Play((JSON, document(finish=None)), FaultKind.TRUNCATED),
        Play((EVENTS, tokens(), DONE), FaultKind.TRUNCATED)),
    Scenario("abort", "a finish reason by which the vendor says that it cut the answer",
        Play((JSON, document(finish="abort")), FaultKind.TRUNCATED),
        Play((EVENTS, tokens(), ending("abort")), FaultKind.TRUNCATED)),
    Scenario("malformed_chunk", "JSON that breaks off in the middle of the answer",
        Play((JSON, _HALF + b'"' + _WHOLE[len(_HALF):]), FaultKind.MALFORMED),
        Play((EVENTS, tokens(), b'data: {"choices": [\n\n', ending()), FaultKind.MALFORMED)),
    Scenario("error_event", "an error in the middle of an answer with status 200; plain: in its place",
        Play((JSON, _BUSY), FaultKind.SERVER),
        Play((EVENTS, tokens(), b"event: error\ndata: " + _BUSY + b"\n\n"), FaultKind.SERVER)),
)  # fmt: skip
"""The answer does not end as it should."""

_NONE = (
    _alike("error_in_200", "an error as the body of an answer with status 200", FaultKind.SERVER,
        JSON, error("Provider returned error", 502)),
    Scenario("empty_body", "200 and nothing",
        Play((JSON,), FaultKind.MALFORMED), Play((EVENTS,), FaultKind.TRUNCATED)),
    Scenario("empty_choices", "an answer without choices",
        Play((JSON, b'{"choices": []}'), FaultKind.MALFORMED),
        Play((EVENTS, event({"choices": []}), DONE), FaultKind.TRUNCATED)),
    Scenario("null_content", "an answer that says nothing",
        Play((JSON, document(None)), FaultKind.MALFORMED), Play((EVENTS, ending()), FaultKind.MALFORMED)),
    Scenario("empty_parts", "an answer whose parts are none",
        Play((JSON, document([])), FaultKind.MALFORMED),
        Play((EVENTS, delta([]), ending()), FaultKind.MALFORMED)),
    _alike("wrong_content_type", "a page in HTML with status 200", FaultKind.MALFORMED,
        Head(200, {"content-type": "text/html"}), _HTML),
    Scenario("invalid_json", "what is no JSON",
        Play((JSON, b"{'choices': None}"), FaultKind.MALFORMED),
        Play((EVENTS, b"data: {'choices': None}\n\n", DONE), FaultKind.MALFORMED)),
    Scenario("trailing_garbage", "an answer with more behind it",
        Play((JSON, _WHOLE, b"</html>"), FaultKind.MALFORMED), Play((EVENTS, *_STREAM, b"</html>"), None)),
)  # fmt: skip
"""The response is not a valid answer."""

_LONG = (
    Scenario("endless", "a body of 1 GiB", *_long()),
    Scenario("gzip_bomb", "a body that unpacks to 1 GiB", *_long("gzip")),
    Scenario("long_line", "10 MB in a single line", *_one_line()),
    Scenario("many_events", "a million events that say nothing, then the answer; plain: a million spaces",
        Play((JSON, Repeat(b" " * 1000, 1000), _WHOLE), None),
        Play((EVENTS, Repeat(b"data:{}\n\n" * 1000, 1000), *_STREAM), None)),
)  # fmt: skip
"""The response is far too large."""

_ODD = (
    _usage("missing", "no usage", None),
    _usage("negative", "usage below zero", USAGE | {"completion_tokens": -3}),
    _usage("float", "usage in fractions", USAGE | {"prompt_tokens": 9.5}),
    _usage("huge", "usage of 10^30 tokens", USAGE | {"completion_tokens": 10**30}),
    _ends("odd_finish_reason", "a finish reason that nobody knows", "tired", "tired"),
    _ends("content_filter", "the answer is cut off by the vendor's filter", "content_filter", "content_filter"),
    _calls("broken_arguments", "a tool call whose arguments are no JSON", ("c1", '{"at": ')),
    _calls("duplicate_ids", "two tool calls with the same id", ("c1", "{}"), ("c1", "{}")),
    Scenario("invalid_utf8", "what is no UTF-8",
        Play((JSON, _WHOLE.replace(b"well", b"w\xffll")), None),
        Play((EVENTS, tokens().replace(b"well", b"w\xffll"), ending()), None)),
    Scenario("interim", "`100 Continue` before the answer",
        Play((Head(100, {}), JSON, _WHOLE), None), Play((Head(100, {}), EVENTS, *_STREAM), None)),
)  # fmt: skip
"""Odd, but still an answer."""

SCENARIOS: dict[str, Scenario] = {
    scenario.name: scenario for scenario in (*_UNREACHED, *_STATUSES, *_BROKEN, *_UNFINISHED, *_NONE, *_LONG, *_ODD)
}
"""All faults, by name."""

Faults = str | Scenario | Iterable[str | Scenario | None]
"""One fault for all requests, or one per request, by name; None, or a request after the last, gets a good answer."""


class Request(NamedTuple):
    """A received request, without headers, since they hold the key."""

    method: str
    url: str
    body: bytes


class Script:
    """Serves each request with the next fault; records the requests."""

    def __init__(self, faults: Faults = (), answer: str = ANSWER) -> None:
        self.requests: list[Request] = []
        self.faults = _check_faults(faults)
        """The given faults; empty for an iterator."""
        self._good = good(answer)
        self._scenarios: Iterator[Scenario | None] = iter(self.faults)
        if isinstance(faults, str | Scenario):
            self._scenarios = repeat(self.faults[0])
        elif not isinstance(faults, Sequence):
            self._scenarios = map(_find_scenario, faults)

    def play(self, request: Request) -> Play:
        """Take the next fault for a request."""
        self.requests.append(request)
        scenario = next(self._scenarios, None) or self._good
        try:
            content = json.loads(request.body)
        except ValueError:
            content = None
        return scenario.play(isinstance(content, dict) and content.get("stream") is True)


def _check_faults(faults: object) -> list[Scenario | None]:
    if isinstance(faults, str | Scenario):
        return [_find_scenario(faults)]
    if isinstance(faults, Sequence):
        return [_find_scenario(fault, f"faults[{index}]") for index, fault in enumerate(faults)]
    if isinstance(faults, Iterable):
        return []
    hint = "name one of routewright.testing.SCENARIOS"
    raise ValidationFailed.of(Problem("faults", f"{shown(faults)} is neither a fault nor a list of them", hint))


def _find_scenario(fault: object, path: str = "faults") -> Scenario | None:
    if fault is None or isinstance(fault, Scenario):
        return fault
    if isinstance(fault, str) and fault in SCENARIOS:
        return SCENARIOS[fault]
    hint = did_you_mean(fault, SCENARIOS) or "see routewright.testing.SCENARIOS, or pass None for a good answer"
    raise ValidationFailed.of(Problem(path, f"unknown fault {shown(fault)}", hint))
