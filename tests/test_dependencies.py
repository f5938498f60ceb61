"""The locks have what ``pyproject.toml`` asks for, by hash and from no index of its own; each bound has its reason."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
LOCK = (ROOT / "tests" / "requirements.txt").read_text("utf-8")
FRAMEWORKS = (ROOT / "tests" / "frameworks.txt").read_text("utf-8")
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


def versions(lock: str, requirement: Requirement) -> list[str]:
    return re.findall(rf"^{canonicalize_name(requirement.name)}==(\S+)", lock, re.MULTILINE)


def test_the_locks_have_a_version_of_all_within_their_bounds() -> None:
    locks = dict.fromkeys((*OWN, *group("ci")), LOCK)
    locks |= dict.fromkeys(group("frameworks"), FRAMEWORKS)
    for requirement, lock in locks.items():
        assert versions(lock, requirement), f"{requirement} is not locked: see docs/contributing.md"
        assert all(version in requirement.specifier for version in versions(lock, requirement)), requirement


def test_frameworks_are_tested_with_the_same_versions_of_our_dependencies() -> None:
    for requirement in map(Requirement, PROJECT["project"]["dependencies"]):
        assert versions(FRAMEWORKS, requirement) == versions(LOCK, requirement), requirement


@pytest.mark.parametrize("lock", [LOCK, FRAMEWORKS], ids=["requirements", "frameworks"])
def test_every_line_of_a_lock_is_a_version_with_hashes(lock: str) -> None:
    entries = re.sub(r" \\\n\s+", " ", re.sub(r"^#.*\n", "", lock, flags=re.MULTILINE)).splitlines()
    assert entries
    for entry in entries:
        assert re.fullmatch(r"[a-z\d-]+==\S+( ; [^#:]+?)?( --hash=sha256:[\da-f]{64})+", entry), entry


@pytest.mark.parametrize("lock", [LOCK, FRAMEWORKS], ids=["requirements", "frameworks"])
def test_a_lock_names_no_index(lock: str) -> None:
    assert not re.search(r"://|index|find-links|\w+\.(org|com|net|io)\b", lock)


def test_the_extras_are_tested_within_the_same_bounds() -> None:
    bounds = {requirement.name: requirement.specifier for requirement in (*group("test"), *group("frameworks"))}
    assert {r.name: bounds[r.name] for r in OWN if r.name in bounds} == {
        r.name: r.specifier for r in OWN if r.name in bounds
    }


def test_every_upper_bound_has_its_reason() -> None:
    page = (ROOT / "docs" / "explanation" / "dependencies.md").read_text("utf-8")
    for requirement in OWN:
        row = next(line for line in page.splitlines() if line.startswith("| ") and requirement.name in line)
        for upper in (bound for bound in requirement.specifier if bound.operator == "<"):
            assert f"`{upper}`" in row, requirement
