"""``RouterLlm`` with Google ADK, in a process that has it: the tests are in ``google_adk_suite.py``."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.frameworks import PASSED, list_tests, outcomes

SUITE = Path(__file__).with_name("google_adk_suite.py")
EXAMPLE = "test_an_example_runs_offline_and_prints_something[google_adk]"
PAGE = "test_every_block_runs_and_prints_what_the_page_shows[docs/how-to/frameworks.md]"


@pytest.fixture(scope="module")
def results() -> dict[str, str]:
    return outcomes(f"{SUITE}", f"tests/test_examples.py::{EXAMPLE}", f"tests/test_docs.py::{PAGE}")


@pytest.mark.parametrize("name", [*list_tests(SUITE), EXAMPLE, PAGE])
def test_in_a_process_with_google_adk(name: str, results: dict[str, str]) -> None:
    mine = {case: result for case, result in results.items() if name in (case, case.partition("[")[0])}
    assert mine, "it was not run"
    assert not [f"{case}: {result}" for case, result in mine.items() if result != PASSED]


@pytest.mark.skipif(find_spec("google.adk") is not None, reason="it is installed")
def test_without_google_adk_the_extra_is_named() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'routewright\[google-adk\]'"):
        importlib.import_module("routewright.integrations.google_adk")
