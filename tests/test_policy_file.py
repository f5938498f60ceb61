"""Policy files: what they may say, and that whatever is wrong with one is told with file, line and key."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from routewright import Policy, ValidationFailed
from routewright.errors import Problem
from routewright.policies import read_policies
from routewright.wire import (
    Budget,
    CacheOpts,
    Params,
    PolicyFallback,
    PolicyGuardrail,
    PolicyWeights,
    ReasoningBudget,
)
from tests.tables import table

FULL: dict[str, Any] = {
    "name": "all",
    "id": "pol_all",
    "weights": {"quality": 40, "cost": 30, "latency": 20, "stability": 10},
    "models": ["openai/*", "tag:eu", "capability:image"],
    "exclude": ["provider:zai"],
    "capabilities": ["tools", "json"],
    "regions": ["eu"],
    "min_quality": 0.4,
    "max_latency_ms": 12_000,
    "fallback": {"models": [], "max_retries": 2, "on_partial": "error", "on_refusal": "fallback"},
    "params": {
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 700,
        "reasoning": {"max_tokens": 600},
        "parallel_tool_calls": False,
        "service_tier": "flex",
        "verbosity": "low",
        "extra": {"openai": {"user": "u"}},
    },
    "budget": {"max_cost_usd": 0.5, "max_tokens": 9_000},
    "cache": {"mode": "exact", "threshold": 0.9, "ttl_seconds": 60, "explore": 0.1, "namespace": "n"},
    "timeout_ms": 5_000,
    "guardrails": [
        {"patterns": ["email", "card"], "action": "redact"},
        {"deny": ["Project Nightjar"], "action": "block", "stages": ["output"]},
    ],
}
MADE = Policy(
    name="all",
    id="pol_all",
    weights=PolicyWeights(quality=40, cost=30, latency=20, stability=10),
    models=["openai/*", "tag:eu", "capability:image"],
    exclude=["provider:zai"],
    capabilities=["tools", "json"],
    regions=["eu"],
    min_quality=0.4,
    max_latency_ms=12_000,
    fallback=PolicyFallback([], 2, "error", "fallback"),
    params=Params(
        0.5,
        0.9,
        700,
        reasoning=ReasoningBudget(600),
        parallel_tool_calls=False,
        service_tier="flex",
        verbosity="low",
        extra={"openai": {"user": "u"}},
    ),
    budget=Budget(0.5, 9_000),
    cache=CacheOpts(mode="exact", threshold=0.9, ttl_seconds=60, explore=0.1, namespace="n"),
    timeout_ms=5_000,
    guardrails=[
        PolicyGuardrail(patterns=["email", "card"], action="redact"),
        PolicyGuardrail(deny=["Project Nightjar"], action="block", stages=["output"]),
    ],
)


def as_toml(content: Any) -> str:
    """A document of plain values, each policy in a table of its own."""
    policies = content["policies"]
    if not isinstance(policies, list) or not all(isinstance(each, dict) for each in policies):
        return f"policies = {inline(policies)}\n"
    return "".join(
        "[[policies]]\n" + "".join(f"{json.dumps(key)} = {inline(value)}\n" for key, value in each.items())
        for each in policies
    )


def inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {inline(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    return json.dumps(value) if value is not None else '"null"'


WRITE: dict[str, Callable[[Any], str]] = {
    "policies.toml": as_toml,
    "policies.json": lambda content: json.dumps(content, indent=1),
}


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize("name", WRITE)
def test_every_key_of_a_file_reaches_the_policy(tmp_path: Path, name: str) -> None:
    assert read_policies(written(tmp_path, name, WRITE[name]({"policies": [FULL]}))) == [MADE]
    assert read_policies(written(tmp_path, name, WRITE[name]({"policies": [{"name": "p"}]}))) == [Policy(name="p")]


@table(
    ("name", "text", "said"),
    [
        (
            "policies.toml",
            '[[policies]]\nname = "a"\n\n[[policies]]\nname = "b"\n# more\nmodells = ["x/y"]\n',
            "policies.toml: policies[1].modells: unknown key; did you mean 'models'?",
        ),
        (
            "policies.toml",
            '[[policies]]\nname = "a"\nmax_cost_usd = 0.01',
            "policies.toml: policies[0].max_cost_usd: unknown key; it belongs in another table",
        ),
        (
            "policies.toml",
            '[[policies]]\nname = "a"\n\n[[policies.guardrails]]\npatterns = ["email", "mail"]\naction = "redact"',
            "policies.toml: policies[0].guardrails[0].patterns[1]: must be 'email', 'phone', 'card', 'iban' or "
            "'api_key', got 'mail'",
        ),
        (
            "policies.toml",
            '[[policies]]\nname = "a"\n\n[[policies.guardrails]]\naction = "block"\ndeny = ["x", " "]\nstages = []',
            "policies.toml: policies['a'].guardrails[0].deny[1]: must be 1 to 200 printable characters, got ''\n"
            "policies.toml: policies['a'].guardrails[0].stages: must name at least one; one of input, output",
        ),
        (
            "policies.toml",
            '[[policies]]\nname = "a"\n[policies.weights]\nquality = 50\ncost = 50\nlatency = 1\nstability = 0',
            "policies.toml: policies['a'].weights: add up to 101 percent; make them add up to 100",
        ),
        (
            "policies.toml",
            '[[policies]]\nname = "a"\n[policies.weights]\nquality = 50.5\ncost = 50',
            "policies.toml: policies[0].weights.quality: must be a whole number, got 50.5\n"
            "policies.toml: policies[0].weights.latency: is missing\n"
            "policies.toml: policies[0].weights.stability: is missing",
        ),
        (
            "policies.toml",
            '[[policies]]\nname = "a"\nmodels = [\n "x",\n "x",\n]',
            "policies.toml: policies['a'].models[1]: lists 'x' again; list each model once",
        ),
        ("policies.toml", '[[policies]]\nname = "a"\nname = "b"\n', "policies.toml:3: is not TOML: Cannot overwrite"),
        ("policies.toml", '[[policies]]\nname = """a\n', "policies.toml: is not TOML: Unterminated"),
        ("policies.json", '{"policies": [\n}', "policies.json:2: is not JSON: Expecting value at line 2"),
        ("policies.json", '{\n"policies": [{\n"a": 1, "a": 2}]}', "policies.json: policies[0]: has the key 'a' twice"),
        ("policies.json", "{}", "policies.json: policies: is missing"),
        ("policies.toml", "policies = [5]", "policies.toml: policies[0]: must be a table or object, got 5"),
    ],
)
def test_every_error_names_file_and_key(tmp_path: Path, name: str, text: str, said: str) -> None:
    with pytest.raises(ValidationFailed) as refused:
        read_policies(written(tmp_path, name, text))
    told = str(refused.value).replace(f"{tmp_path}/", "").split("\n")
    assert all(line.startswith(each) for line, each in zip(told, said.split("\n"), strict=False))
    assert "canary" not in str(refused.value)


def test_invalid_utf8_is_reported_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "policies.toml").write_bytes(b"# one\n# \xff\n")
    with pytest.raises(ValidationFailed, match=r"policies.toml:2: is not UTF-8 text \(byte 8\); convert it"):
        read_policies(tmp_path / "policies.toml")


@pytest.mark.parametrize(
    "text",
    ['"' + '\\"' * 300_000, "# it's " + "a." * 99],
    ids=["quotes", "comment"],
)
def test_long_texts_are_not_taken_for_keys(tmp_path: Path, text: str) -> None:
    """The first took minutes when each of its quotes was taken for the beginning of a key."""
    path = tmp_path / "policies.toml"
    path.write_text(text + "." * 99)
    with pytest.raises(ValidationFailed) as refused:
        read_policies(path)
    assert "parts" not in str(refused.value)


KEYS = [*FULL, "goal", "strategy", "guardrails", "nmae", "", "a b", "max_cost_usd", "é"]
scalars = st.one_of(
    st.sampled_from(
        ["cost", "all", "exact", "openai/*", "tag:", "capability:x", "", " ", "@", "\x00", "\n", "a" * 300]
    ),
    st.text(max_size=5).filter(lambda text: not re.search("[\ud800-\udfff]", text)),
    st.booleans(),
    st.none(),
    st.integers(-(10**30), 10**30),
    st.sampled_from([10**400, 0, 1, 100, 0.5, 1e308]),
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def policies(draw: st.DrawFn) -> dict[str, Any]:
    """One that is right but for a few keys."""
    kept = {key: FULL[key] for key in draw(st.lists(st.sampled_from([*FULL]), unique=True))}
    wrong: dict[str, Any] = draw(st.dictionaries(st.sampled_from(KEYS), values, max_size=2))
    for key in wrong:
        if isinstance(kept.get(key), dict) and draw(st.booleans()):
            wrong[key] = kept[key] | draw(st.dictionaries(st.sampled_from([*kept[key], "x"]), values, max_size=2))
    return {"name": draw(st.sampled_from(["a", "b"]))} | kept | wrong


documents = st.fixed_dictionaries({"policies": st.lists(policies(), max_size=3) | values})


SLIPS = [b"", b'"', b"[", b"}", b"\n", b"=", b",", b"\xff", b"\x00", b"'", b"#"]


@st.composite
def files(draw: st.DrawFn) -> tuple[str, bytes]:
    """The name and the bytes of a file, some of which are others than were meant."""
    name = draw(st.sampled_from([*WRITE]))
    content = bytearray(WRITE[name](draw(documents)).encode())
    for _ in range(draw(st.sampled_from([0, 0, 1, 2, 5]))):
        place = draw(st.integers(0, len(content)))
        end = draw(st.sampled_from([place, place + 1, place + 8]))
        content[place:end] = draw(st.sampled_from(SLIPS))
    return name, bytes(content)


def problems_of(path: Path) -> list[Problem] | None:
    """What is wrong with a file; None: nothing. Any other error is a traceback."""
    try:
        read_policies(path)
    except ValidationFailed as error:
        return error.problems
    return None


def test_any_file_is_read_or_refused_with_its_name(tmp_path: Path, full: bool) -> None:
    seen: list[bool] = []

    @settings(max_examples=10_000 if full else 40)
    @given(files())
    def hold(file: tuple[str, bytes]) -> None:
        name, content = file
        path = tmp_path / name
        path.write_bytes(content)
        last = content.count(b"\n") + 1
        found = problems_of(path)
        for each in found or ():
            place = re.match(rf"{re.escape(str(path))}(:\d+)?(: |$)", each.path)
            assert place is not None, each
            assert place[1] is None or 1 <= int(place[1][1:]) <= last
        assert found != []
        seen.append(found is None)

    hold()
    assert not all(seen)
    assert any(seen) or not full, "some are valid, of so many"
