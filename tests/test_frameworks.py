"""Suites of frameworks run in processes of their own, and none of their failures is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import frameworks

SUITE = """
import pytest, syrupy

def test_a_pass(request):
    assert not request.config.pluginmanager.has_plugin("syrupy")

def test_a_failure():
    assert 1 == 2

@pytest.fixture
def broken():
    raise LookupError("no such thing")

def test_an_error(broken): ...

def test_a_skip():
    pytest.skip("not here")
"""


def test_each_test_of_a_suite_is_reported_by_name(tmp_path: Path) -> None:
    suite = tmp_path / "suite.py"
    suite.write_text(SUITE)
    outcomes = frameworks.outcomes(f"{suite}", "--noconftest", f"--rootdir={tmp_path}")
    assert [*outcomes] == frameworks.list_tests(suite)
    assert outcomes.pop("test_a_pass") == frameworks.PASSED
    starts = ("failure: assert 1 == 2", "error: ", "skipped: not here")
    assert [outcome.startswith(start) for outcome, start in zip(outcomes.values(), starts, strict=True)] == [True] * 3
    assert "no such thing" in outcomes["test_an_error"]


def test_a_suite_that_cannot_run_fails(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="nowhere"):
        frameworks.outcomes(f"{tmp_path / 'nowhere.py'}", "--noconftest", f"--rootdir={tmp_path}")


@pytest.mark.parametrize(
    ("variable", "ends"),
    [("NONE", pytest.skip.Exception), ("CI", pytest.fail.Exception), ("TEST_SERVERS", pytest.fail.Exception)],
)
def test_suites_that_cannot_be_installed_are_skipped_but_on_ci(
    variable: str, ends: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> Path:
        raise frameworks.NotInstalled("no route to host")

    monkeypatch.delenv("CI", raising=False)
    monkeypatch.delenv("TEST_SERVERS", raising=False)
    monkeypatch.setenv(variable, "required")
    monkeypatch.setattr(frameworks, "install", refuse)
    with pytest.raises(ends, match="not installed: no route to host"):
        frameworks.outcomes("nothing.py")
