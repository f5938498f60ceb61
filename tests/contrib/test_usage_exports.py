"""Files of usage exports: each form as published, errors that name file, line and key, and anything else."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from routewright import ValidationFailed
from routewright.contrib.usage_exports import ExportLine, UsageExport, read_usage_export

EXPORTS = Path(__file__).parent.parent / "data" / "exports"
GPT, MINI = "gpt-4.1-2025-04-14", "gpt-4o-mini-2024-07-18"
HAIKU, SONNET = "claude-haiku-4-5-20251001", "claude-sonnet-4-6"
COUNTS = ("requests", "input_tokens", "output_tokens", "cached_tokens")


def used(day: int, model: str, *counts: int | None) -> ExportLine:
    return ExportLine(day=f"2026-11-{day}", model=model, **dict(zip(COUNTS, counts, strict=True)))


def paid(day: int, model: str, nanos: int) -> ExportLine:
    return ExportLine(day=f"2026-11-{day}", model=model, cost_nanos=nanos)


def both(day: int, model: str, *counts: int | None, nanos: int) -> ExportLine:
    return ExportLine(day=f"2026-11-{day}", model=model, cost_nanos=nanos, **dict(zip(COUNTS, counts, strict=True)))


ANTHROPIC = (used(20, HAIKU, None, 100_000, 20_000, 15_000), used(21, SONNET, None, 10_000, 2_000, 0))
READ: dict[str, tuple[str, str | None, str, tuple[ExportLine, ...]]] = {
    "openai_usage.json": (
        "openai", "openai", "2026-11-22",
        (used(20, GPT, 40, 120_000, 30_000, 20_000), used(20, MINI, 3, 9_000, 1_000, 0),
         used(21, GPT, 20, 60_000, 10_000, 0)),
    ),
    "openai_costs.json": (
        "openai", "openai", "2026-11-21",
        (paid(20, GPT, 450_000_000), paid(20, MINI, 1_950_000), paid(21, "assistants api | file search", 2_000_000),
         paid(21, GPT, 200_000_000)),
    ),
    "anthropic_usage.json": ("anthropic", "anthropic", "2026-11-21", ANTHROPIC),
    "anthropic_costs.json": (
        "anthropic", "anthropic", "2026-11-21",
        (paid(20, HAIKU, 186_500_000), paid(21, "Web Search Usage", 1_000_000), paid(21, SONNET, 60_000_000)),
    ),
    "anthropic_console_usage.csv": ("anthropic-console", "anthropic", "2026-11-21", ANTHROPIC),
    "anthropic_console_costs.csv": (
        "anthropic-console", "anthropic", "2026-11-21",
        (paid(20, "Claude Haiku 4.5", 190_000_000), paid(21, "Claude Sonnet 4.6", 60_000_000)),
    ),
    "openrouter_activity.json": (
        "openrouter", "openrouter", "2026-11-21",
        (both(20, "openai/gpt-4.1", 2, 2_150, 1_000, None, nanos=12_300_000),
         both(21, "z-ai/glm-4.7", 1, 9_000, 700, None, nanos=500_000_000)),
    ),
    "openrouter_activity.csv": (
        "openrouter", "openrouter", "2026-11-21",
        (both(20, f"openai/{GPT}", 2, 2_150, 1_000, 100, nanos=12_300_000),
         both(21, "z-ai/glm-4.7-20251222", 1, 9_000, 700, 0, nanos=500_000_000)),
    ),
    "table.csv": (
        "table", None, "2026-11-21",
        (both(20, "gpt-4.1", 40, 120_000, 30_000, 20_000, nanos=450_000_000),
         both(20, "gpt-4o-mini", 3, 9_000, 1_000, 0, nanos=1_950_000),
         both(21, "gpt-4.1", 20, 60_000, 10_000, 0, nanos=200_000_000)),
    ),
}  # fmt: skip


def refusal(path: Path) -> str:
    with pytest.raises(ValidationFailed) as refused:
        read_usage_export(path)
    return str(refused.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "usage.txt"


# Each form


def test_every_form_has_a_sample() -> None:
    assert {path.name for path in EXPORTS.iterdir()} == set(READ)


@pytest.mark.parametrize("name", READ)
def test_published_files_are_recognized_by_content(name: str, file: Path) -> None:
    shape, provider, last, lines = READ[name]
    content = (EXPORTS / name).read_bytes()
    for written in (content, b"\xef\xbb\xbf" + content, content.replace(b"\n", b"\r\n"), b"\n" * 2 + content):
        if name.endswith(".csv") and written.startswith(b"\n"):
            continue
        file.write_bytes(written)
        found = read_usage_export(file)
        assert (found.shape, found.provider, found.first, found.last) == (shape, provider, "2026-11-20", last)
        assert found.lines == lines
        assert not found.partial


def test_a_table_may_use_semicolons_or_tabs_and_have_empty_lines(file: Path) -> None:
    text = (EXPORTS / "table.csv").read_text("utf-8")
    for separator in ";\t":
        file.write_text(text.replace(",", separator).replace("\n", "\n\n"), "utf-8")
        assert read_usage_export(str(file)).lines == READ["table.csv"][3]


# Errors


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ":1: holds no usage; export a time in which there was some"),
        ("  \n", ":1: holds no usage"),
        ("date,model,cost\n", ":1: holds no usage"),
        ("hello", ":1: holds no usage"),
        ("a,b\n1,2\n", ":2: is no row of a usage export of a known form; give a page of OpenAI's"),
        ("date,cost\n2026-11-20,1\n2026-11-21,much\n", ":3: cost: must be a number, got 'much'; write it plainly"),
        ("date,cost\n\n2026-11-20,1\n\nsoon,1\n", ":5: date: must be a day, got 'soon'; write YYYY-MM-DD"),
        ("date,cost\n2026-11-20,1\n2026-11-21\n", ":3: has 1 cells, where the head has 2; export it anew"),
        ("date,cost\n2026-11-20,1,5\n", ":2: has 3 cells, where the head has 2"),
        ('date,model,cost\n2026-11-20,"a\nb",1\n2026-11-20,x,-\n', ":4: cost: must be a number, got '-'"),
        ('date,cost\n2026-11-20,"1', ":2: is neither JSON nor CSV: unexpected end of data"),
        ('date,cost\n2026-11-20,"1"2\n', ":2: is neither JSON nor CSV: ',' expected after '\"'"),
        ("date,cost\n2026-11-20," + "1" * 200_000, ":2: is neither JSON nor CSV: field larger than field limit"),
        ("{", ":1: is not JSON: Expecting property name"),
        ('{"data": [\n  {"start_time": 1795132800,\n   "results": [\n    {"amount": {"value": "x"}}]}]}',
         "usage.txt: data[0].results[0].amount.value: must be a number, got 'x'"),
        ('[{"date": "2026-11-20", "cost": 1},\n {"date": "2026-11-20", "cost": {}}]', ": [1].cost: must be a number"),
        ('[{"date": "2026-11-20", "cost": NaN}]', "NaN is not JSON"),
        ('[{"date": "2026-11-20", "date": "2026-11-20", "cost": 1}]', "[0]: has the key 'date' twice"),
        ("[" * 100_000, "nests"),
        ('[{"cost": ' + "1" * 5_000 + "}]", "number"),
        ('{"error": {"message": "You have insufficient permissions", "code": null}}', ": is no usage export of a kn"),
    ],
)  # fmt: skip
def test_an_error_names_the_file_and_the_place(text: str, said: str, file: Path) -> None:
    file.write_text(text, "utf-8")
    assert said in refusal(file)
    assert refusal(file).startswith(f"{file}:")


def test_a_missing_or_binary_file_is_refused(tmp_path: Path, file: Path) -> None:
    file.write_bytes(b"date,cost\n2026-11-20,\xff\n")
    assert refusal(file) == f"{file}:2: is not UTF-8 text (byte 21); convert it"
    assert "cannot be read: No such file" in refusal(tmp_path / "none.csv")
    assert "cannot be read: Is a directory" in refusal(tmp_path)
    with pytest.raises(ValidationFailed, match=r"^path: 7 is not the path of a file"):
        read_usage_export(7)  # type: ignore[arg-type]


# Anything

_BITS: tuple[Any, ...] = (
    *("", "0", "-1", "1e999", "nan", '"', "'", ",", ";", "\t", "\n", "\r", "\0", "{", "}", "[", "]", ":", "null"),
    *("2026-11-20", "2026-13-40", "1795132800", "99999999999999999999", "usd", "EUR", "𝟙", "١٢", "1_000", "$", "true"),
    *('"results"', '"data"', "amount", "start_time", "model", "cost_usd", "date", '{"value": []}', "[[[[[["),
    *('"\\ud800"', "\ud7ff"),
)  # fmt: skip


def test_any_file_is_read_or_refused(file: Path, full: bool) -> None:
    rng = Random(20261122)
    texts = [path.read_text("utf-8") for path in sorted(EXPORTS.iterdir())]
    read = 0
    for _ in range(10_000 if full else 100):
        file.write_bytes(_damaged(rng, rng.choice(texts)))
        read += _is_read(file)
    assert read, "some are still read"


def _is_read(file: Path) -> bool:
    """Whether a file is an export; if not, its refusal names it."""
    try:
        found = read_usage_export(file)
    except ValidationFailed as refused:
        places = [each.path for each in refused.problems]
    else:
        json.dumps([line.model for line in found.lines]).encode()
        return isinstance(found, UsageExport)
    assert all(place.startswith(f"{file}:") for place in places)
    return False


def _damaged(rng: Random, text: str) -> bytes:
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(text) + 1)
        match rng.randrange(4):
            case 0:
                text = text[:at] + rng.choice(_BITS) + text[at:]
            case 1:
                text = text[:at] + text[at + rng.randrange(1, 20) :]
            case 2:
                text = text[:at] + rng.choice(_BITS) + text[at + rng.randrange(1, 8) :]
            case _:
                end = at + rng.randrange(200)
                text = text[:at] + text[at:end] * 2 + text[end:]
    content = text.encode()
    if rng.random() < 0.1:
        at = rng.randrange(len(content) + 1)
        content = content[:at] + rng.randbytes(3) + content[at:]
    return content
