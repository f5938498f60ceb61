"""Image sizes are read from the first bytes, and token counts follow the vendors' formulas."""

from __future__ import annotations

import base64
import struct
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright._core.tokens import images as image
from routewright._core.tokens.images import ANY_RULE, RULES, filling_of, images_of, rule_of, size_of, tokens_of
from routewright.wire import ImagePart, Images, ImageUrl, Message, Part
from tests.tables import table

SIDES = st.integers(1, 16_383)


def url(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def png(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + b"\x08\x06" + bytes(40)


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + bytes(40)


def jpeg(width: int, height: int, before: bytes = b"", frame: int = 0xC0) -> bytes:
    head = b"\xff\xd8\xff\xe0" + struct.pack(">H", 16) + b"JFIF\x00" + bytes(9) + before
    return head + b"\xff" + bytes([frame]) + struct.pack(">HBHH", 17, 8, height, width) + bytes(40)


def webp(width: int, height: int) -> bytes:
    body = b"VP8 " + struct.pack("<I", 100) + b"\x00\x00\x00\x9d\x01\x2a" + struct.pack("<HH", width, height)
    return b"RIFF" + struct.pack("<I", 200) + b"WEBP" + body + bytes(40)


def webp_lossless(width: int, height: int) -> bytes:
    bits = width - 1 | height - 1 << 14
    return b"RIFF" + struct.pack("<I", 200) + b"WEBPVP8L" + struct.pack("<IBI", 90, 0x2F, bits) + bytes(40)


def webp_extended(width: int, height: int) -> bytes:
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return b"RIFF" + struct.pack("<I", 200) + b"WEBPVP8X" + struct.pack("<II", 10, 0) + sides + bytes(40)


@pytest.mark.parametrize("made", [png, gif, jpeg, webp, webp_lossless, webp_extended])
@given(width=SIDES, height=SIDES)
def test_the_size_of_every_format_is_read(made: object, width: int, height: int) -> None:
    assert callable(made)
    assert size_of(url(made(width, height))) == (width, height)


def test_a_jpeg_is_walked_to_its_frame_past_previews_tables_and_fillers() -> None:
    preview = b"\xff\xe1" + struct.pack(">H", 60_000) + bytes(59_998)
    tables = b"\xff\xc4" + struct.pack(">H", 4) + b"\xc0\x00" + b"\xff\xff\xd0"
    assert size_of(url(jpeg(4_032, 3_024, preview + tables, 0xC2))) == (4_032, 3_024)


def test_of_a_large_image_only_the_head_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    decode, seen = image._decoded, list[int]()

    def noted(text: str) -> bytes:
        seen.append(len(text))
        return decode(text)

    monkeypatch.setattr(image, "_decoded", noted)
    assert size_of(url(png(640, 480) + bytes(1_000_000))) == (640, 480)
    assert size_of(url(jpeg(640, 480) + bytes(1_000_000))) == (640, 480)
    assert max(seen) <= image.HEAD_CHARACTERS


@table(
    "broken",
    [
        "https://example.com/cat.png",
        "data:image/png;base64,",
        "data:image/png;base64,!!!!",
        "data:" + "x" * 1_000 + ";base64,iVBORw0KGgo",
        url(png(0, 10)),
        url(png(10, 10)[:20]),
        url(b"\xff\xd8\xff\xd9"),
        url(b"RIFF....WEBPVP9 " + bytes(50)),
    ],
)
def test_broken_unknown_or_remote_images_have_no_known_size(broken: str) -> None:
    assert size_of(broken) is None


@given(st.binary(max_size=300), st.sampled_from([b"", b"\xff\xd8", b"\xff\xd8\xff", b"RIFF", b"GIF89a", b"\x89PNG"]))
def test_any_bytes_can_be_read(rest: bytes, start: bytes) -> None:
    size_of(url(start + rest))


@table("segment", [b"\xff", b"\xff\x01", b"\xff\xe0\x00\x00"])
def test_a_jpeg_with_endless_segments_is_given_up_early(segment: bytes) -> None:
    assert size_of(url(jpeg(30, 20, segment * 100))) == (30, 20)
    assert size_of(url(jpeg(30, 20, segment * 2_000))) is None


def test_sizes_beyond_the_limit_count_as_unknown() -> None:
    parts: list[Part] = [ImagePart(ImageUrl(url(png(side, side)))) for side in (*range(1, 201), 1, 64)]
    found = images_of([Message("user", parts)])
    assert [image.width for image in found] == [*range(1, 65), 0]
    assert [image.count for image in found if image.count > 1] == [2, 2, 136]
    for rules in (ANY_RULE, rule_of("openai/gpt-5")):
        known = [Images(side, side, "auto", 1) for side in range(65, 201)]
        assert tokens_of(found[-1:], rules)[1] >= tokens_of(known, rules)[1]


def test_equal_images_are_grouped_in_order_of_appearance() -> None:
    small, remote = ImagePart(ImageUrl(url(png(8, 9)), "low")), ImagePart(ImageUrl("https://a.example/b.png"))
    messages = [Message("user", [remote, small]), Message("user", "hi"), Message("user", [small])]
    assert images_of(messages) == (Images(), Images(8, 9, "low", 2))


def exact(model: str, width: int, height: int, detail: str = "high") -> int:
    return tokens_of([Images(width, height, detail)], rule_of(model))[1]  # type: ignore[arg-type]


@table(
    ("model", "width", "height", "tokens"),
    [
        ("openai/gpt-4o", 1_024, 1_024, 765),
        ("openai/gpt-4o", 2_048, 4_096, 1_105),
        ("openai/gpt-4o-mini", 128, 64, 8_500),
        ("openai/o3", 128, 64, 225),
        ("openai/gpt-5", 1_024, 1_024, 630),
        ("openai/gpt-4.1-mini", 1_024, 1_024, 1_659),
        ("openai/gpt-6-astra", 1_920, 1_080, 2_448),
        ("xai/grok-4.7", 448, 448, 512),
        ("xai/grok-4.7", 900, 900, 1_792),
        ("google/gemini-2.5-pro", 300, 200, 258),
        ("google/gemini-2.5-pro", 960, 540, 1_548),
        ("google/gemini-3.8-flash", 4_000, 3_000, 1_120),
        ("cohere/command-a-vision-07-2025", 1_536, 2_048, 3_328),
    ],
)
def test_published_examples_are_reproduced(model: str, width: int, height: int, tokens: int) -> None:
    assert exact(model, width, height) == tokens


@table(
    ("model", "width", "height", "seen"),
    [
        ("openai/gpt-4.1-mini", 1_800, 2_400, 2_352),
        ("openai/gpt-4.1-mini", 4_000, 1_474, 2_488),
        ("openai/gpt-6-astra", 4_032, 3_024, 14_364),
        ("openai/gpt-5.5", 4_032, 3_024, 11_868),
        ("anthropic/claude-sonnet-5-5", 1_920, 1_080, 2_691),
        ("anthropic/claude-sonnet-5-5", 4_032, 3_024, 3_928),
        ("anthropic/claude-haiku-4-5", 3_840, 2_160, 1_592),
        ("anthropic/claude-haiku-4-5", 1_024, 1_024, 1_369),
        ("mistral/mistral-medium-2604", 1_540, 1_540, 3_080),
    ],
)
def test_billed_tokens_are_within_the_range(model: str, width: int, height: int, seen: int) -> None:
    low, high = tokens_of([Images(width, height)], rule_of(model))
    assert low <= seen <= high


@given(width=SIDES, height=SIDES, detail=st.sampled_from(["auto", "low", "high"]), count=st.integers(1, 3))
def test_a_known_size_is_within_the_range_of_an_unknown_one(
    width: int, height: int, detail: Literal["auto", "low", "high"], count: int
) -> None:
    known, unknown = [Images(width, height, detail, count)], [Images(0, 0, detail, count)]
    for rules in {*(rules for _, rules in RULES), ANY_RULE}:
        low, high = tokens_of(known, rules)
        least, most = tokens_of(unknown, rules)
        assert 0 < least <= low <= high <= most, rules
        assert filling_of(known, rules) <= most, rules


def test_models_of_one_vendor_count_the_same_on_every_host() -> None:
    assert rule_of("togetherai/moonshotai/Kimi-K3") == rule_of("moonshotai/kimi-k3") != ANY_RULE
    assert rule_of("deepinfra/Qwen/Qwen3.5-9B") == rule_of("alibaba/qwen3.8-max") != ANY_RULE
