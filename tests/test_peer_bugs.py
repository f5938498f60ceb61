"""Bugs that others shipped, planted here one by one: the tests find each.

A bug is an edit of one file of a copy of the package, and the tests that are to fail by it. They are run in a process
of their own, and pass on the copy without the edit.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import copytree
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "routewright"
ADMISSION = "tests/engine/test_admission.py"
LIMITER = "tests/core/test_limiter.py"
STORAGE = "tests/backends/test_storage.py"


class Bug(NamedTuple):
    """One of them."""

    what: str
    file: str
    was: str
    becomes: str
    tests: str
    named: str
    """What the tests are called, for pytest's ``-k``."""


BUGS = [
    Bug(
        "a budget is checked and not reserved, so calls at once overspend it",
        "_core/ledger.py",
        " - each.reserved_nanos + held.get(each.name, 0) < asked.nanos",
        " < asked.nanos",
        ADMISSION,
        "waits_for_what_others_hold",
    ),
    Bug(
        "a reservation is cut to the room that is left, so a hard limit is not hard",
        "_engine/money.py",
        "nanos = worst_of_start(plan, 2 if hedged else 1)",
        "nanos = worst_of_start(plan, 2 if hedged else 1) // 4",
        ADMISSION,
        "worst_case_is_set_aside",
    ),
    Bug(
        "a cancelled call keeps its reservation, and the account is refused for money that it has",
        "_engine/money.py",
        "            self._retry_queue.put(payer.caller.account, "
        "[Settle(id=call.id, at=timestamp(self._clock.time()))])",
        "            pass",
        "tests/engine/test_cancel_admission.py",
        "at_any_await and plain and answer",
    ),
    Bug(
        "a call that has ended keeps its slot",
        "_engine/admission.py",
        "await self._shared.give_back(taken, self._used_tokens, self._deadline)",
        "pass",
        ADMISSION,
        "slot_is_held_only_while",
    ),
    Bug(
        "slots of a process that was killed are never free again",
        "_core/limiter.py",
        "            if owner.until <= now:",
        "            if owner.until <= now - 10**9:",
        LIMITER,
        "lease or lapse or heard",
    ),
    Bug(
        "each process has limits of its own, so that they are multiplied",
        "coordination.py",
        "    if isinstance(storage, LocalStorage):",
        "    if isinstance(storage, int):",
        ADMISSION,
        "routers_of_one_store",
    ),
    Bug(
        "requests and tokens are counted in one window",
        "_core/limiter.py",
        '{"requests": {}, "tokens": {}, "slots": {}}',
        '{"requests": (one := {}), "tokens": one, "slots": {}}',
        LIMITER,
        "test",
    ),
    Bug(
        "a refusal takes of the limits that had room",
        "_core/limiter.py",
        "            self._windows[take.resource][take.name].undo(take.amount)",
        "            pass",
        ADMISSION,
        "refusal_by_the_key",
    ),
    Bug(
        "a window begins with the minute, so that twice the limit fits around its edge",
        "_core/limiter.py",
        "        cut = now - WINDOW_S",
        "        cut = now // 60 * 60 - 0.000001",
        LIMITER,
        "test",
    ),
    Bug(
        "who comes back when told to is refused again",
        "_core/window.py",
        "    wait = leaves - now",
        "    wait = leaves - now - 2.0",
        ADMISSION,
        "window_that_is_full",
    ),
    Bug(
        "reserved tokens are not corrected by what was used",
        "_core/limiter.py",
        "            hold.correct(tokens)",
        "            pass",
        ADMISSION,
        "tokens_are_counted",
    ),
    Bug(
        "an answer is given before it is settled, and the bill is lost when the process ends",
        "_engine/route.py",
        "        commits = self.records.commits or call.hold is not None",
        "        commits = self.records.commits",
        ADMISSION,
        "settled_and_not_before",
    ),
    Bug(
        "what is settled again is counted twice",
        "_core/books.py",
        "        if name in self._rows:",
        "        if name in ():",
        "tests/core/test_ledger.py",
        "test",
    ),
    Bug(
        "a stream is priced at nothing",
        "_core/call.py",
        "            if attempt.usage or attempt.cost_range_nanos(self.bounds)",
        "            if (attempt.usage or attempt.cost_range_nanos(self.bounds)) and not attempt.delivered",
        ADMISSION,
        "stream_that_is_left_midway",
    ),
    Bug(
        "an attempt of a fallback is priced as the first model's",
        "_core/attempts/machine.py",
        "        self.running.append(attempt)\n",
        "        self.running.append(attempt)\n        attempt.prices_of_day = legs[0].prices\n",
        ADMISSION,
        "fallback_is_paid_for",
    ),
    Bug(
        "what was produced of a stream that is left is not billed",
        "_core/call.py",
        "        left_midway = ",
        "        left_midway = False and ",
        ADMISSION,
        "stream_that_is_left_midway",
    ),
    Bug(
        "a revoked key works on for as long as a cache keeps it",
        "_engine/account.py",
        "KNOWN_S = 2.0",
        "KNOWN_S = 300.0",
        ADMISSION,
        "revoked_key",
    ),
    Bug(
        "two calls with one idempotency key both run, if the second comes before the first has ended",
        "_core/books.py",
        "        if there is not None and there.refuses(",
        "        if there is None and there.refuses(",
        STORAGE,
        "Memory and claim",
    ),
    Bug(
        "one who waits for a call with his key is sent away with an error",
        "_engine/idempotency.py",
        "                    await running.ended.wait()",
        '                    raise RouterTimeoutError("it runs")',
        ADMISSION,
        "are_one_call",
    ),
    Bug(
        "a failure keeps its idempotency key, so that nobody may try again",
        "_engine/settlement.py",
        "    if settlement.claim is not None and part",
        "    if settlement.claim is not None and settlement.result is not None and part",
        ADMISSION,
        "lets_the_next_with_the_key_try",
    ),
    Bug(
        "calls go on unpaid while the ledger is away",
        "_engine/money.py",
        "        except PreconditionFailed as error:",
        "        except RouterError as error:\n            if error.retryable:\n                return None",
        "tests/engine/test_failing_parts.py",
        "no_call_is_made_that_needs_its_promise and Reserve",
    ),
    Bug(
        "a threshold is told of again with every call",
        "_core/ledger.py",
        "    shelf.put_sums(name, Sums(told=reached[-1]))",
        "    pass",
        ADMISSION,
        "thresholds",
    ),
]
IN_CI = 3


def run(copy: Path, tests: str, named: str) -> int:
    """Run some tests on a copy of the package."""
    quick = ["-n", "0", "-p", "no:cacheprovider", "-p", "no:schemathesis"]
    command = [sys.executable, "-m", "pytest", "-q", "-x", *quick, tests, "-k", named]
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "CI": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False, timeout=300).returncode


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    copytree(SOURCE, folder / "routewright")
    return folder


def chosen(full: bool) -> Sequence[Bug]:
    """All of them, or three."""
    return BUGS if full else BUGS[:: len(BUGS) // IN_CI + 1]


def skip_where_it_moved(bug: Bug) -> None:
    file = SOURCE / bug.file
    if not file.exists() or bug.was not in file.read_text("utf-8"):
        pytest.skip("its place went when accounts became one service: plant it anew")


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.what.replace(" ", "_").replace(",", ""))
def test_the_tests_find(bug: Bug, copy: Path, full: bool) -> None:
    if bug not in chosen(full):
        pytest.skip("planted with --full")
    skip_where_it_moved(bug)
    file = copy / "routewright" / bug.file
    right = file.read_text("utf-8")
    if full:  # otherwise the rest of this run shows it
        assert run(copy, bug.tests, bug.named) == 0, "the tests pass without it"
    file.write_text(right.replace(bug.was, bug.becomes), "utf-8")
    try:
        assert run(copy, bug.tests, bug.named) == 1, "no test fails by it"
    finally:
        file.write_text(right, "utf-8")


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.what.replace(" ", "_").replace(",", ""))
def test_each_has_its_place_in_the_code(bug: Bug) -> None:
    skip_where_it_moved(bug)
    assert (SOURCE / bug.file).read_text("utf-8").count(bug.was) == 1


def test_there_are_twenty_and_each_is_another() -> None:
    assert len(BUGS) >= 20
    assert len({(bug.file, bug.was, bug.becomes) for bug in BUGS}) == len(BUGS)
