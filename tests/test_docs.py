"""The documentation is true: its blocks run, its output is real, its tables follow from the code, its links lead on."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import get_args

import pytest
from docs._blocks import ROOT, blocks, pages, run
from docs._generate import POLICY_PARTS, POLICY_PARTS_OF_REQUESTS, with_parts
from msgspec import Struct
from msgspec.structs import fields

from routewright import Budget, ExecutionLimits, Fallback, Limits, Message, Params, RouteRequest, Settings
from routewright._setup.config import ModelEntry
from routewright.wire import CacheOpts, Candidate, DecisionInput, PushedEvent, Reason, Rejection, Routing, Scope
from routewright.wire.docstrings import field_docs
from tests.browser.screenshots import MOST_BYTES, SHOTS
from tests.tables import table

PAGES = [pytest.param(page, id=page.relative_to(ROOT).as_posix()) for page in pages()]

_HERE = re.compile(
    r"https://(?:github\.com/routewright/routewright/(?:blob|tree)/main|raw\.githubusercontent\.com/routewright/routewright/main)/"
)
"""Links to the project itself, as the front page has them, so that they work on an index page, too."""
_LINK = re.compile(r"\[[^\]]*\](?:\(|: )(?!https?://|mailto:)([^)\s]+)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)")


@pytest.mark.parametrize("page", PAGES)
def test_every_block_runs_and_prints_what_the_page_shows(page: Path) -> None:
    for found in run(page):
        assert found.agrees, f"python docs/_generate.py renews what is shown:\n{found.shown}\nprinted:\n{found.printed}"


@table("page", PAGES)
def test_generated_parts_are_what_the_code_says(page: Path) -> None:
    text = page.read_text("utf-8")
    assert with_parts(text) == text, "run python docs/_generate.py"


@table("page", PAGES)
def test_every_link_leads_somewhere(page: Path) -> None:
    up = "../" * len(page.relative_to(ROOT).parent.parts)
    for link in _LINK.findall(_HERE.sub(up or "./", _CODE.sub("", _FENCED.sub("", page.read_text("utf-8"))))):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} leads nowhere"
        assert not anchor or anchor in _anchors(target), f"{link}: no such heading"


@pytest.mark.parametrize(
    ("page", "shapes"),
    [
        ("reference/route-request.md", [RouteRequest, Message, Fallback, Budget, Params, CacheOpts, Routing]),
        ("reference/decision.md", [DecisionInput, Candidate, Rejection]),
        ("reference/settings.md", [Settings, Limits, ExecutionLimits]),
    ],
)
def test_a_reference_names_every_field(page: str, shapes: list[type[Struct]]) -> None:
    named = _named(page)
    for shape in shapes:
        missing = [field.encode_name for field in fields(shape) if field.encode_name not in named]
        assert not missing, f"{page} does not name {missing} of {shape.__name__}"


def test_the_keys_of_files_are_all_named() -> None:
    assert set(ModelEntry.model_fields) <= _named("how-to/own-models.md")
    for entry in POLICY_PARTS_OF_REQUESTS.values():
        assert set(entry.model_fields) <= _named("reference/policy-file.md")
    for entry, kind in POLICY_PARTS.values():
        assert set(entry.model_fields) <= _named("reference/policy-file.md")
        assert set(entry.model_fields) <= set(field_docs(kind)), f"a string below each field of {kind.__name__}"


def test_every_reason_of_rejection_is_explained() -> None:
    assert set(Reason) <= _named("reference/decision.md")


def test_every_scope_and_every_event_is_explained() -> None:
    assert set(get_args(Scope)) <= _named("reference/accounts.md")
    assert {each.type for each in get_args(PushedEvent)} <= _named("how-to/hooks.md")


def test_the_classes_for_own_storages_exist() -> None:
    roots = ROOT / "src/routewright", ROOT / "tests/contracts"
    source = [path.read_text("utf-8") for root in roots for path in root.rglob("*.py")]
    classes = {name for text in source for name in re.findall(r"^class (\w+)", text, re.MULTILINE)}
    prose = re.sub("^```.*?^```", "", (ROOT / "docs/how-to/own-storage.md").read_text("utf-8"), flags=re.M | re.S)
    assert set(re.findall("`([A-Z][A-Za-z]+)", prose)) <= classes


def test_every_picture_is_on_a_page_with_a_text_and_small() -> None:
    images = {file.name: file.stat().st_size for file in (ROOT / "docs/images").iterdir()}
    used = {
        name: text
        for page in pages()
        for text, name in re.findall(r"!\[([^\]]*)\]\((?:\.\./)?images/([^)]+)\)", inline(page.read_text("utf-8")))
    }
    taken = {f"{name}.png" for name in (*SHOTS, "explain")}
    assert used.keys() == images.keys() == taken, "run python -m tests.browser.screenshots"
    assert all(used.values())
    assert max(images.values()) <= MOST_BYTES


def inline(text: str) -> str:
    """A page with the addresses of its references in place of their names."""
    targets = dict(re.findall(r"^\[([^\]]+)\]: \S*?docs/(\S+)$", text, re.MULTILINE))
    return re.sub(r"\]\[([^\]]+)\]", lambda name: f"]({targets[name[1]]})", text) if targets else text


def test_the_front_page_links_to_the_index_page_of_a_package() -> None:
    """Relative links would lead nowhere there."""
    assert not [link for link in _LINK.findall((ROOT / "README.md").read_text("utf-8")) if not link.startswith("#")]


def test_the_program_of_the_front_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    text = next(
        block.text for block in blocks((ROOT / "README.md").read_text("utf-8")) if "import asyncio" in block.text
    )
    exec(text.replace("Router()", "Router.sandbox()"), {})
    assert "runner-up" in capsys.readouterr().out


def test_the_index_links_to_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    links = {(index.parent / link.partition("#")[0]).resolve() for link in _LINK.findall(index.read_text("utf-8"))}
    assert set(pages()) <= {ROOT / "README.md", index, *links}


def test_contributors_run_what_ci_runs() -> None:
    page = (ROOT / "docs" / "contributing.md").read_text("utf-8")
    commands = next(block.text.splitlines() for block in blocks(page) if ".venv/bin/mypy" in block.text)
    assert len(commands) == 5
    assert {*commands} <= {*_run_by_ci()}


def test_the_readme_tests_as_ci_does_with_dependencies_that_are_not_locked() -> None:
    page = (ROOT / "README.md").read_text("utf-8")
    command = next(block.text.strip() for block in blocks(page) if block.text.endswith("/pytest\n"))
    own = (".venv/bin/pip install -q -U pip", ".venv/bin/pip install -q -e . --group test")
    assert {*command.split(" && ")} - {*own} == {"python3 -m venv .venv", ".venv/bin/pytest"} <= {*_run_by_ci()}


def _run_by_ci() -> list[str]:
    """Commands in ``.ci/run``, in order, without what becomes of their output."""
    lines = (ROOT / ".ci" / "run").read_text("utf-8").splitlines()
    return [line.strip().removeprefix("check ").partition(" | tee ")[0] for line in lines]


def _anchors(page: Path) -> set[str]:
    headings = _HEADING.findall(_FENCED.sub("", page.read_text("utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _named(page: str) -> set[str]:
    """What stands between backticks on a page."""
    return set(re.findall(r"`([^`\n]+)`", _FENCED.sub("", (ROOT / "docs" / page).read_text("utf-8"))))


_EXTRA = re.compile(r"\.\[([\w,]+)\]")
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


@table("page", PAGES)
def test_installation_lines_work_from_a_clone_as_they_stand(page: Path) -> None:
    for line in re.findall(r"pip install ([^`\n&#]+)", page.read_text("utf-8")):
        words = shlex.split(line)
        for place, word in enumerate(words):
            assert not word.startswith("routewright"), f"{line}: there is no such package but in a clone, as ."
            if extras := _EXTRA.fullmatch(word):
                assert {*extras[1].split(",")} <= {*_PROJECT["project"]["optional-dependencies"]}, line
            if word == "--group":
                assert words[place + 1] in _PROJECT["dependency-groups"], line
