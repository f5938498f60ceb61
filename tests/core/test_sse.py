"""The event stream parser: the same events for any chunking, in linear time."""

from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from routewright._core.sse import SseEvent, SseParser
from routewright.errors import ProviderFault
from tests.tables import table


def parsed(*pieces: bytes, max_line_bytes: int = 1 << 20) -> list[SseEvent | str]:
    """The events, and the kind of the fault that ended them."""
    parser = SseParser(max_line_bytes=max_line_bytes)
    events: list[SseEvent | str] = []
    try:
        for piece in pieces:
            events += parser.feed(piece)
    except ProviderFault as fault:
        events.append(fault.kind)
    return events


def test_fields_of_an_event_are_read() -> None:
    stream = b": comment\nevent: delta\nid: 7\nretry: 10\nunknown\ndata: one\ndata:two\ndata\n\ndata: next\n\n"
    assert parsed(stream) == [SseEvent("one\ntwo\n", "delta", "7"), SseEvent("next", "message", "7")]


@table("end", [b"\n", b"\r", b"\r\n"])
def test_lf_cr_and_crlf_end_a_line(end: bytes) -> None:
    assert parsed(end.join([b"data: a", b"data: b", b"", b"data: c", b"", b""])) == [SseEvent("a\nb"), SseEvent("c")]


@table("character", ["\u2028", "\u2029", "\u0085", "\v", "\f", "\x1c", "\x1e"])
def test_no_other_character_ends_a_line(character: str) -> None:
    assert parsed(f"data: a{character}b\n\n".encode()) == [SseEvent(f"a{character}b")]


def test_crlf_split_between_pieces_is_one_line_end() -> None:
    assert parsed(b"data: a\r", b"\ndata: b\r", b"", b"\n\r", b"\n") == [SseEvent("a\nb")]


def test_a_byte_order_mark_is_dropped_only_at_the_start() -> None:
    assert parsed(b"\xef\xbb", b"\xbfdata: a\n\n\xef\xbb\xbfdata: b\n\ndata: \xef\xbb\xbfc\n\n") == [
        SseEvent("a"),
        SseEvent("\ufeffc"),
    ]


def test_one_leading_space_is_dropped() -> None:
    assert parsed(b"data:  two\n\ndata:none\n\n") == [SseEvent(" two"), SseEvent("none")]


def test_id_with_null_is_ignored() -> None:
    assert parsed(b"id: a\ndata: 1\n\nid: b\0c\ndata: 2\n\nid\ndata: 3\n\n") == [
        SseEvent("1", id="a"),
        SseEvent("2", id="a"),
        SseEvent("3"),
    ]


@table("end", [b"\n", b"\r\n", b""])
@table("size", [1, 7, 1000])
def test_text_outside_events_is_kept_from_a_brace_on(end: bytes, size: int) -> None:
    told = b'{\n  "error": {\n    "code": 503\n  }\n}'.replace(b"\n", end or b"\n") + end
    stream, parser = b": life\nfoo: x\n}\ndata: a\n\n" + told, SseParser()
    pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert [event for piece in pieces for event in parser.feed(piece)] == [SseEvent("a")]
    assert json.loads(parser.stray()) == {"error": {"code": 503}}


def test_an_error_field_is_kept() -> None:
    parser = SseParser()
    assert list(parser.feed(b'data: a\n\nerror: {"code": 500}\n\n')) == [SseEvent("a")]
    assert json.loads(parser.stray()) == {"error": {"code": 500}}


def test_text_outside_events_is_bounded_and_loses_no_event() -> None:
    parser = SseParser()
    lines = b"".join(b'{"a": "%d"}\n' % n for n in range(5000))
    assert list(parser.feed(lines + b"data: a\n\ndata: b")) == [SseEvent("a")]
    assert len(parser.stray()) == 16 << 10
    assert SseParser().stray() == ""


def test_bytes_that_are_not_utf8_become_surrogates() -> None:
    assert parsed(b"data: \xf0\x9f\n\ndata: \x98\x80\n\n") == [SseEvent("\udcf0\udc9f"), SseEvent("\udc98\udc80")]


@table("end", [b"", b"\n", b"\r", b"\r\n"])
def test_the_rest_is_what_follows_the_last_blank_line(end: bytes) -> None:
    for stream, rest in ((b"data: a\n\ndata: {}", "{}"), (b"\xef\xbb\xbfdata:x", "x"), (b"data: a\ndata: b", "a\nb")):
        parser = SseParser()
        list(parser.feed(stream + end))
        assert parser.rest() == rest
    parser = SseParser()
    list(parser.feed(b"data: a\n\n: comment" + end))
    assert parser.rest() == ""


def test_line_over_the_limit_is_a_fault_after_the_events_before_it() -> None:
    fits, over = b"data: " + b"x" * 95 + b"\n", b"data: " + b"x" * 96 + b"\n"
    assert parsed(fits, b"\n", max_line_bytes=101) == [SseEvent("x" * 95)]
    assert parsed(b"data: a\n\n" + over, max_line_bytes=101) == [SseEvent("a"), "malformed"]
    assert parsed(b"data: a\n\n", *(b"x" for _ in range(102)), max_line_bytes=101) == [SseEvent("a"), "malformed"]


_lines = st.lists(
    st.sampled_from(
        [b"data: a", b"data: \xf0\x9f\xa6\x9c", b"data", b"event: e", b"id: 1", b": c", b"", b"\xef\xbb\xbf"]
    )
    | st.binary(max_size=12),
    max_size=12,
)


@given(lines=_lines, ends=st.lists(st.sampled_from([b"\n", b"\r", b"\r\n"]), min_size=12, max_size=12), data=st.data())
def test_any_chunking_gives_the_same_events(lines: list[bytes], ends: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(line + end for line, end in zip(lines, ends, strict=False))
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)))) | {0, len(stream)})
    pieces = [stream[start:end] for start, end in pairwise(cuts)]
    assert parsed(*pieces, max_line_bytes=16) == parsed(stream, max_line_bytes=16)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_text_is_unchanged(text: str) -> None:
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    event = "".join(f"data: {line}\n" for line in lines)
    assert parsed(f"{event}\n".encode()) == [SseEvent("\n".join(lines))]


def test_one_long_line_in_tiny_pieces_takes_linear_time(full: bool) -> None:
    size = 10 << 20
    piece = b"x" * (16 if full else 128)  # copying what came before at each piece would move 400 GB
    events = parsed(b"data:", *(piece for _ in range(size // len(piece))), b"\n\n", max_line_bytes=size + 8)
    assert events == [SseEvent("x" * size)]
