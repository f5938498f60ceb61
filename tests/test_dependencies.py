"""The lock has what ``pyproject.toml`` asks for, by hash and from no index of its own; each bound has its reason."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
LOCK = (ROOT / "tests" / "requirements.txt").read_text("utf-8")
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
GROUPS: dict[str, list[Any]] = PROJECT["dependency-groups"]
OWN = [
    Requirement(line) for line in (*PROJECT["project"]["dependencies"], *(r for rows in EXTRAS.values() for r in rows))
]


def group(name: str) -> Iterator[Requirement]:
    for row in GROUPS[name]:
        if isinstance(row, dict):
            yield from group(row["include-group"])
        else:
            yield Requirement(row)


def test_the_lock_has_a_version_of_all_within_their_bounds() -> None:
    for requirement in (*OWN, *group("ci")):
        versions = re.findall(rf"^{canonicalize_name(requirement.name)}==(\S+)", LOCK, re.MULTILINE)
        assert versions, f"{requirement} is not locked: see docs/contributing.md"
        assert all(version in requirement.specifier for version in versions), requirement


def test_every_line_of_the_lock_is_a_version_with_hashes() -> None:
    entries = re.sub(r" \\\n\s+", " ", re.sub(r"^#.*\n", "", LOCK, flags=re.MULTILINE)).splitlines()
    assert entries
    for entry in entries:
        assert re.fullmatch(r"[a-z\d-]+==\S+( ; [^#:]+?)?( --hash=sha256:[\da-f]{64})+", entry), entry


def test_the_lock_names_no_index() -> None:
    assert not re.search(r"://|index|find-links|\w+\.(org|com|net|io)\b", LOCK)


def test_the_extras_are_tested_within_the_same_bounds() -> None:
    bounds = {requirement.name: requirement.specifier for requirement in group("test")}
    assert {r.name: bounds[r.name] for r in OWN if r.name in bounds} == {
        r.name: r.specifier for r in OWN if r.name in bounds
    }


def test_every_upper_bound_has_its_reason() -> None:
    page = (ROOT / "docs" / "explanation" / "dependencies.md").read_text("utf-8")
    for requirement in OWN:
        row = next(line for line in page.splitlines() if line.startswith("| ") and requirement.name in line)
        for upper in (bound for bound in requirement.specifier if bound.operator == "<"):
            assert f"`{upper}`" in row, requirement
