"""The size of an image, from its first bytes, and its tokens, by vendors' published formulas. Never fetches an image,
and decodes only its header."""

from __future__ import annotations

from binascii import Error as Base64Error
from binascii import a2b_base64
from collections.abc import Iterable
from itertools import chain
from math import isqrt
from typing import NamedTuple

from msgspec import json
from msgspec.structs import replace

from routewright.wire import AudioPart, FilePart, ImagePart, Images, Message

Range = tuple[int, int]  # the fewest and the most tokens

HEAD_CHARACTERS = 1 << 17
"""Base64 characters decoded for a JPEG, whose size comes after a camera's previews."""
FIRST_CHARACTERS = 64  # base64 characters that contain the size in all other formats
ESTIMATE = 1_000  # tokens of an image of unknown size, for scores
LEAST = 1
ASSUMED = (2_048, 2_048)
"""Size of an unknown image for window checks: overflowing a window costs no money."""
UNBOUNDED = 1 << 40  # the most tokens of a file or recording: only a model's window bounds them
PAGE_CHARACTERS = 80_000  # estimates for a PDF: base64 characters per page
PAGE_TOKENS = 2_000
SOME_PAGES = 5  # if only its URL is known
AUDIO_CHARACTERS = {"wav": 1_300, "mp3": 650}
"""Estimated base64 characters per token of audio: 16 kHz mono, 128 kbit/s, 32 tokens per second."""
THOUGHT_BYTES = 4
MOST_SIDE = 65_535
MOST_SIZES = 64
"""Distinct sizes per prompt; further images count as unknown, since each size runs every vendor's formula."""
MOST_SEGMENTS = 1_000  # of a JPEG before its frame; cameras write a few dozen


class Patches(NamedTuple):
    """A token per square, up to ``most``; larger images are scaled down first."""

    side: int
    most: int
    most_high: int | None = None
    """``most`` with ``detail: high`` or ``low``."""
    percent: int = 100
    """Tokens per hundred squares."""
    edge: int = MOST_SIDE
    """Pixels to which the longest side is scaled down."""
    least: int = 1
    """Squares to which a smaller image is scaled up."""
    added: int = 0
    per_row: int = 0
    """Further tokens per row of squares."""

    def tokens(self, width: int, height: int, detail: str) -> Range:
        """Fewest and most tokens of an image."""
        maximum = self.most if detail == "auto" or self.most_high is None else self.most_high
        longest = max(width, height)
        if longest > self.edge:
            width, height = -(-width * self.edge // longest), -(-height * self.edge // longest)
        rows = -(-height // self.side)
        columns = -(-width // self.side)
        fitted = rows * columns <= maximum
        squares = max(rows * columns, self.least) if fitted else maximum
        if not fitted:  # scaling keeps the aspect ratio
            rows = isqrt(maximum * height // max(width, 1)) + 1
        high = -(-squares * self.percent // 100) + self.per_row * rows + self.added
        # vendors do not publish how they round scaled sizes
        low = rows * columns * self.percent * 9 // 1_000 if fitted else squares * self.percent * 3 // 400
        return max(low, 1), high


class Tiles(NamedTuple):
    """Tokens per square of the scaled image, plus a base for the whole."""

    base: int
    tile: int

    def tokens(self, width: int, height: int, detail: str) -> Range:
        """Fewest and most tokens of an image."""
        if detail == "low":
            return self.base, self.base
        long, short = max(width, height), max(min(width, height), 1)
        if long > 2_048:
            long, short = 2_048, max(-(-short * 2_048 // long), 1)
        if short > 768:
            long, short = -(-long * 768 // short), 768
        most = self.base + self.tile * -(-long // 512) * -(-short // 512)
        return (self.base if detail == "auto" else most * 9 // 10), most


class Crops(NamedTuple):
    """Tokens per crop, whose size depends on the shorter side of the image."""

    tile: int

    def tokens(self, width: int, height: int, detail: str) -> Range:
        """Fewest and most tokens of an image."""
        longest = max(width, height)
        if longest <= 384:
            return self.tile, self.tile
        if longest > 3_072:
            width, height = -(-width * 3_072 // longest), -(-height * 3_072 // longest)
        unit = min(max(min(width, height) * 2 // 3, 256), 768)
        return self.tile, self.tile * -(-width // unit) * -(-height // unit)


class Squares(NamedTuple):
    """Tokens per square, up to ``most`` squares, plus one for the whole."""

    side: int
    tile: int
    most: int

    def tokens(self, width: int, height: int, detail: str) -> Range:
        """Fewest and most tokens of an image."""
        squares = -(-width // self.side) * -(-height // self.side)
        return self.tile, self.tile * (min(squares, self.most) + 1)


class Flat(NamedTuple):
    """A range of tokens for any size."""

    low: int
    high: int

    def tokens(self, width: int, height: int, detail: str) -> Range:
        """Fewest and most tokens of an image."""
        return self.low, self.high


Rule = Patches | Tiles | Crops | Squares | Flat

# Vendors' formulas, as published by November 2026: OpenAI's guide "Images and vision" (tiles; patches with multipliers;
# from GPT-5.6 on no more scaling, and a refusal beyond 30,000 patches), Anthropic's "Vision" (28 pixels; 5 % more than
# it says, as an earlier formula did), Google's "Understand and count tokens" and "Media resolution", xAI's "Image
# understanding", Cohere's "Image inputs", DeepSeek's "Vision", Alibaba's "Visual understanding" and the processors of
# Qwen, Kimi and mistral-common. The first marker found in a model's id applies.
RULES: tuple[tuple[str, tuple[Rule, ...]], ...] = (
    ("gpt-4o-mini", (Tiles(2_833, 5_667),)),
    ("gpt-4.1-mini", (Patches(32, 1_536, percent=162),)),
    ("gpt-4.1-nano", (Patches(32, 1_536, percent=246),)),
    ("gpt-4", (Tiles(85, 170),)),
    ("o4-mini", (Patches(32, 1_536, percent=172),)),
    ("openai/o", (Tiles(75, 150),)),
    ("gpt-5-mini", (Patches(32, 1_536, percent=162),)),
    ("gpt-5-nano", (Patches(32, 1_536, percent=246),)),
    ("gpt-5.4-mini", (Patches(32, 1_536, percent=162),)),
    ("gpt-5.4-nano", (Patches(32, 1_536, percent=246),)),
    ("gpt-5-", (Tiles(70, 140),)),
    ("gpt-5.1", (Tiles(70, 140),)),
    *((f"gpt-5.{minor}", (Patches(32, 10_000, 2_500, percent=120),)) for minor in (2, 3, 4, 5)),
    ("gpt-5.", (Patches(32, 30_000, 2_500, percent=120),)),
    ("gpt-6", (Patches(32, 30_000, 2_500, percent=120),)),
    ("gpt-5", (Tiles(70, 140),)),
    *(
        (f"claude-{name}", (Patches(28, 1_568, percent=105, edge=1_568),))
        for name in ("3", "haiku-4", "sonnet-4", "opus-4-5", "opus-4-6")
    ),
    ("claude", (Patches(28, 4_784, percent=105, edge=2_576),)),
    ("gemini-1", (Crops(258),)),
    ("gemini-2", (Crops(258),)),
    ("gemini", (Flat(256, 1_120),)),
    ("gemma", (Flat(64, 1_120),)),
    ("grok", (Squares(448, 256, 6),)),
    ("command-a-vision", (Squares(512, 256, 12),)),
    ("deepseek", (Flat(16, 384),)),
    ("kimi", (Patches(28, 4_096),)),
    ("qwen", (Patches(32, 16_384, least=256, added=2), Patches(28, 16_384, least=4, added=2))),
    *(
        (f"{name}stral", (Patches(16, 4_096, edge=1_024, per_row=1), Patches(28, 3_025, edge=1_540, per_row=1)))
        for name in ("mi", "mini", "pix", "magi", "dev")
    ),
)
ANY_RULE: tuple[Rule, ...] = tuple(dict.fromkeys(chain.from_iterable(rules for _, rules in RULES)))
"""For other vendors: all rules, of which the extremes count."""
_LARGEST = ((5_568, 5_568), (768, 2_048), (385, 3_072))  # sizes that reach the maximum of every rule
_MEDIAN = Patches(28, 1_568, edge=1_568)


def rule_of(model: str) -> tuple[Rule, ...]:
    """The rules that may apply to a model, from its id."""
    name = model.lower()
    return next((rules for marker, rules in RULES if marker in name), ANY_RULE)


def tokens_of(images: Iterable[Images], rules: tuple[Rule, ...]) -> Range:
    """The fewest and most tokens of all images together."""
    low = high = 0
    for image in images:
        if image.tokens:
            high += image.count * (image.most or UNBOUNDED)
            continue
        sizes = ((image.width, image.height),) if image.width else _LARGEST
        ranges = [rule.tokens(*size, image.detail) for rule in rules for size in sizes]
        low += image.count * (min(least for least, _ in ranges) if image.width else LEAST)
        high += image.count * max(most for _, most in ranges)
    return low, high


def filling_of(images: Iterable[Images], rules: tuple[Rule, ...]) -> int:
    """Tokens of all images to reserve in a window."""
    total = 0
    for image in images:
        if image.tokens:
            total += image.count * image.tokens
            continue
        size = (image.width, image.height) if image.width else ASSUMED
        total += image.count * max(rule.tokens(*size, image.detail)[1] for rule in rules)
    return total


def estimate_of(images: Iterable[Images]) -> int:
    """Estimated tokens of all images, by a median rule, for scores."""
    total = 0
    for image in images:
        size = image.tokens or ESTIMATE
        if image.width:
            size = _MEDIAN.tokens(image.width, image.height, image.detail)[1]
        total += image.count * size
    return total


def images_of(messages: Iterable[Message]) -> tuple[Images, ...]:
    """The images, files, audio and reasoning of a prompt. Equal ones are counted together, in order of appearance."""
    counts: dict[Images, int] = {}
    thought = 0
    for message in messages:
        if message.reasoning is not None:
            thought += len(json.encode(message.reasoning.items))
        if type(message.content) is list:
            for part in message.content:
                if isinstance(part, ImagePart):
                    width, height = size_of(part.image_url.url) or (0, 0)
                    image = Images(width, height, part.image_url.detail or "auto")
                    if image not in counts and len(counts) >= MOST_SIZES:
                        image = Images(0, 0, image.detail)
                    counts[image] = counts.get(image, 0) + 1
                elif isinstance(part, FilePart):
                    data = part.file.file_data
                    pages = len(data) // PAGE_CHARACTERS + 1 if data[:5].lower() == "data:" else SOME_PAGES
                    file = Images(tokens=pages * PAGE_TOKENS)
                    counts[file] = counts.get(file, 0) + 1
                elif isinstance(part, AudioPart):
                    heard = Images(tokens=len(part.input_audio.data) // AUDIO_CHARACTERS[part.input_audio.format] + 1)
                    counts[heard] = counts.get(heard, 0) + 1
    if thought:
        counts[Images(tokens=max(1, thought // THOUGHT_BYTES), most=thought)] = 1
    return tuple(replace(image, count=count) for image, count in counts.items())


def size_of(url: str) -> tuple[int, int] | None:
    """Width and height of the PNG, JPEG, GIF or WebP in a ``data:`` URL; None if unknown."""
    if not url.startswith("data:"):
        return None
    start = url.find(",", 0, 256) + 1
    if not start or not url[:start].endswith(";base64,"):
        return None
    head = _decoded(url[start : start + FIRST_CHARACTERS])
    size = 0, 0
    if head.startswith(b"\xff\xd8"):  # walk the segments of a JPEG to its frame header
        head = _decoded(url[start : start + HEAD_CHARACTERS])
        at = 2
        for _ in range(MOST_SEGMENTS):
            if at + 9 > len(head) or head[at] != 0xFF:
                break
            kind = head[at + 1]
            if kind == 0xFF:  # padding
                at += 1
            elif 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
                size = int.from_bytes(head[at + 7 : at + 9], "big"), int.from_bytes(head[at + 5 : at + 7], "big")
                break
            elif kind == 0x01 or 0xD0 <= kind <= 0xD7:  # segments without a length
                at += 2
            else:
                at += 2 + max(int.from_bytes(head[at + 2 : at + 4], "big"), 2)
    elif len(head) >= 24 and head.startswith(b"\x89PNG\r\n\x1a\n") and head[12:16] == b"IHDR":
        size = int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    elif len(head) >= 10 and head[:6] in (b"GIF87a", b"GIF89a"):
        size = int.from_bytes(head[6:8], "little"), int.from_bytes(head[8:10], "little")
    elif len(head) >= 30 and head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        match head[12:16]:
            case b"VP8 " if head[23:26] == b"\x9d\x01\x2a":
                size = int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF
            case b"VP8L" if head[20] == 0x2F:
                bits = int.from_bytes(head[21:25], "little")
                size = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
            case b"VP8X":
                size = int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
    return size if min(size) > 0 and max(size) <= MOST_SIDE else None


def _decoded(text: str) -> bytes:
    try:
        return a2b_base64(text[: len(text) // 4 * 4])
    except (Base64Error, ValueError):
        return b""
