"""Bugs that others shipped, planted here one by one: the tests find each.

A bug is an edit of one file of a copy of the package, and the tests that are to fail by it. They are run in a process
of their own, and pass on the copy without the edit.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from shutil import copytree
from typing import NamedTuple

import pytest

from tests.tables import table

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "routewright"
STATE = "_core/accounts/state.py"
SETTLEMENT = "_core/accounts/settlement.py"
WINDOW = "_core/limits.py"
DESK = "backends/storage/sqlite/transaction.py"
ADMISSION = "tests/engine/test_admission.py"
ACCOUNTS = "tests/backends/test_accounts_contract.py"


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
    Bug("a budget is checked and not reserved, so calls at once overspend it", STATE,
        "            if left - sums.reserved + own_nanos < nanos:", "            if left < nanos:", ADMISSION,
        "waits_for_reserved_money_until"),
    Bug("a reservation is cut to the room that is left, so a hard limit is not hard", STATE,
        "            short = self._short(purses, nanos)",
        "            nanos = min([nanos, *(limit - sums.spent for sums, limit in purses if limit and limit > 0)])\n"
        "            short = self._short(purses, nanos)", ACCOUNTS, "Memory and money_is_reserved_at_all_levels"),
    Bug("a cancelled call keeps its reservation, and the account is refused for money that it has", DESK,
        "        if takes or pending.takes:\n", "        if takes:\n", "tests/backends/test_accounts_faults.py",
        "call_cancelled_during_its_tick"),
    Bug("a call that is blocked, or cancelled before it runs, keeps its slot", "_engine/route.py",
        "            if admission.grant is not None or admission.in_run is not None:\n"
        "                admission.release()", "            pass", "tests/engine/test_hold_release.py",
        "guardrail and plain"),
    Bug("a call that has ended keeps its slot", STATE, "                self.windows[party].slots -= 1",
        "                pass", ACCOUNTS, "Memory and slot_is_held_while"),
    Bug("slots of a process that was killed are never free again", DESK,
        "        for owner in self.state.silent(self.log.owner, self.state.at):", "        for owner in list[int]():",
        ACCOUNTS, "Sqlite and silent_process"),
    Bug("each process has limits of its own, so that they are multiplied", "backends/storage/sqlite/log.py",
        "        for tick in ticks[1:]:", "        for tick in ticks[1:1]:", ACCOUNTS,
        "Sqlite and processes_share_limits_money_and_answers"),
    Bug("requests and tokens are counted in one window", WINDOW, "self.used_requests < limits.requests_per_min)",
        "self.used_requests + self.used_tokens < limits.requests_per_min)", "tests/core/test_limits.py",
        "each_limit_refuses_by_itself"),
    Bug("a refusal takes of the limits that had room", STATE, "                raise limit_error(",
        "                for _, other, most in payer.windows:\n"
        "                    if other.admits(most, ask.tokens, 0):\n"
        "                        other.take(self.at, ask.tokens)\n" "                raise limit_error(", ACCOUNTS,
        "Memory and refused_by_one_limit"),
    Bug("a window begins with the minute, so that twice the limit fits around its edge", STATE,
        "        cut = self.at - WINDOW_S\n        for _, window, limits in payer",
        "        cut = self.at // 60 * 60 - 0.000001\n        for _, window, limits in payer", ACCOUNTS,
        "Memory and window_slides"),
    Bug("who comes back when told to is refused again", WINDOW, "    wait = leaves - now",
        "    wait = leaves - now - 2.0", ACCOUNTS, "Memory and retry_after_of_its_refusal"),
    Bug("reserved tokens are not corrected by what was used", SETTLEMENT,
        "                    window.correct(hold.taken_at, end.tokens - hold.tokens)", "                    pass",
        ADMISSION, "tokens_count_at_the_worst_case"),
    Bug("an answer is given before it is settled, and the bill is lost when the process ends", "_engine/route.py",
        "        commits = self.log.commits or (is_limited and not self.admissions.is_immediate)",
        "        commits = self.log.commits", ADMISSION, "returned_only_once_it_is_settled"),
    Bug("what is settled again is counted twice", SETTLEMENT,
        "        rows = tuple([row for row in rows if row.attempt not in booked])", "        rows = tuple(rows)",
        ACCOUNTS, "Memory and repeated_settlement"),
    Bug("a stream is priced at nothing", "_core/call.py", "            if usage is None and cost_range is None:",
        "            if (usage is None and cost_range is None) or attempt.delivered:", ADMISSION, "stream_left_midway"),
    Bug("an attempt of a fallback is priced as the first model's", "_core/attempts/machine.py",
        "        self.running.append(attempt)\n",
        "        self.running.append(attempt)\n        attempt.prices_of_day = legs[0].prices\n", ADMISSION,
        "fallback_is_paid_from_the_rest"),
    Bug("what was produced of a stream that is left is not billed", "_core/call.py", "        is_left = ",
        "        is_left = False and ", ADMISSION, "stream_left_midway"),
    Bug("a revoked key works on for as long as a cache keeps it", "backends/storage/tables/write.py",
        "since, _encode(key)))\n        transaction.refresh_terms(account, key.id)", "since, _encode(key)))", ACCOUNTS,
        "Sqlite and changed_terms_apply_at_once"),
    Bug("two calls with one idempotency key both run, if the second comes before the first has ended", STATE,
        "            self.claims.running[hold.claim] = hold", "            pass", ADMISSION, "are_one_call"),
    Bug("one who waits for a call with his key is sent away with an error", STATE,
        "                return owner_of_key if isinstance(owner_of_key, Replay) else Wait(scope, None)",
        "                if isinstance(owner_of_key, Replay):\n                    return owner_of_key\n"
        "                raise TimeoutError", ADMISSION, "are_one_call"),
    Bug("a failure keeps its idempotency key, so that nobody may try again", STATE,
        "            self.claims.running.pop(hold.claim, None)", "            pass", ADMISSION,
        "after_a_failure_the_next_call_with_the_key_runs"),
    Bug("calls go on unpaid while the ledger is away", "_engine/admission.py",
        "            except RateLimited as error:\n",
        "            except StorageUnavailable:\n"
        "                return Grant(id=self.trace_id, caller=self.caller)\n"
        "            except RateLimited as error:\n", "tests/engine/test_part_outage.py",
        "limited_calls_are_refused and Ask"),
    Bug("a threshold is told of again with every call", SETTLEMENT,
        "    shelf.put_threshold(account.name, name, reached[-1])", "    pass", ACCOUNTS,
        "Memory and each_threshold_is_emitted_once"),
]  # fmt: skip
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


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.what.replace(" ", "_").replace(",", ""))
def test_the_tests_find(bug: Bug, copy: Path, full: bool) -> None:
    if bug not in chosen(full):
        pytest.skip("planted with --full")
    file = copy / "routewright" / bug.file
    right = file.read_text("utf-8")
    if full:  # otherwise the rest of this run shows it
        assert run(copy, bug.tests, bug.named) == 0, "the tests pass without it"
    file.write_text(right.replace(bug.was, bug.becomes), "utf-8")
    try:
        assert run(copy, bug.tests, bug.named) == 1, "no test fails by it"
    finally:
        file.write_text(right, "utf-8")


@table("bug", BUGS, ids=lambda bug: bug.what.replace(" ", "_").replace(",", ""))
def test_each_has_its_place_in_the_code(bug: Bug) -> None:
    assert (SOURCE / bug.file).read_text("utf-8").count(bug.was) == 1


def test_the_tests_that_find_each_exist() -> None:
    assert [bug.tests for bug in BUGS if not (ROOT / bug.tests).is_file()] == []
    files = (ROOT / "tests").rglob("*.py")
    names = [name for file in files for name in re.findall(r"(?:def|class) (\w+)", file.read_text("utf-8"))]
    sought = {word for bug in BUGS for word in re.split(r"\W+", bug.named)} - {"and", "or", "not", ""}
    assert [word for word in sorted(sought) if not any(word.lower() in name.lower() for name in names)] == []


def test_there_are_twenty_and_each_is_another() -> None:
    assert len(BUGS) >= 20
    assert len({(bug.file, bug.was, bug.becomes) for bug in BUGS}) == len(BUGS)
