"""Processes share limits, money and idempotency keys while killed, stopped and idle, and nothing is lost.

Meanwhile the log is copied, pruned and moved, other processes read, and every limit is hit repeatedly. A trigger
records each tick with the purses at that time, for an auditor to check.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import anyio
import msgspec
import pytest

from routewright._core.accounts.log import Tick
from routewright.backends.storage.sqlite import SqliteStorage
from routewright.backends.storage.sqlite.file import connect
from routewright.errors import StorageUnavailable
from routewright.protocols import Storage
from routewright.wire import WINDOW_S, Account, AddCredit, PutAccount, RateLimits, Stands, UsageCounts
from tests.contracts.storage.samples import AT, MONTH, Till, make_account, make_key

from .accounts_child import DAY, KEYS, LEASE_S, TIMES, Fast, Orders, Told
from .shared_file import Audit
from .store_audit import assert_sound

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only there processes share the monotonic clock")

REQUESTS, TOKENS, SLOTS = 200, 5_000, 12
LIMITS = RateLimits(requests_per_min=REQUESTS, tokens_per_min=TOKENS, concurrency=SLOTS)
SLOW = RateLimits(requests_per_min=60, tokens_per_min=900, concurrency=4)
BUDGET = 5_000_000
FIRST, MORE = 30_000_000, 1_500_000
"""With so much the month and the balance begin, and by so much they grow."""
EACH = {"requests_per_min", "tokens_per_min", "concurrency", "key", "account", "month", "agent_run", "idempotency key"}
"""What calls are refused for."""
PATIENCE_S = 30.0
LEASE = LEASE_S / TIMES
"""In seconds of the machine."""
TRIGGER = """
CREATE TABLE audited (n INTEGER PRIMARY KEY, owner INTEGER, at REAL, ops BLOB, purses TEXT, terms BLOB);
CREATE TRIGGER audit AFTER INSERT ON tick BEGIN
    INSERT INTO audited SELECT new.n, new.owner, new.at, new.ops,
        (SELECT json_group_object(name, json_array(spent, granted)) FROM purse WHERE account = 'acme'),
        (SELECT body FROM account WHERE account = 'acme');
END;
"""


class Crew:
    """The processes, which are forked by one."""

    def __init__(self, folder: Path, chance: Random, url: str | None = None) -> None:
        self.path, self.told = folder / "traces.db", folder / "told"
        self.told.mkdir()
        self._chance = chance
        self._pids: dict[int, str] = {}
        self._seeds = 0
        orders = msgspec.json.encode(Orders(url or str(self.path), str(self.told))).decode()
        program = [sys.executable, "-W", "error", "-m", "tests.backends.accounts_child", orders]
        pipe, root = subprocess.PIPE, Path(__file__).parents[2]
        self._forker = subprocess.Popen(program, cwd=root, stdin=pipe, stdout=pipe, text=True)

    def start(self, role: str) -> None:
        """One more."""
        assert self._forker.stdin is not None
        assert self._forker.stdout is not None
        self._seeds += 1
        self._forker.stdin.write(f"{role} {self._seeds}\n")
        self._forker.stdin.flush()
        self._pids[int(self._forker.stdout.readline())] = role

    def kill_one(self) -> None:
        """Kill any, and start one of its kind in its place."""
        pid = self._chance.choice([*self._pids])
        role = self._pids[pid]
        self._kill(pid)
        self.start(role)

    def stop_one(self) -> int:
        """Stop any that spends."""
        pid = self._chance.choice([pid for pid, role in self._pids.items() if role == "spend"])
        os.kill(pid, signal.SIGSTOP)
        return pid

    def go_on(self, pid: int) -> None:
        """Let it go on."""
        os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        """Kill all."""
        for pid in [*self._pids]:
            self._kill(pid)
        self._forker.kill()
        self._forker.communicate()

    def _kill(self, pid: int) -> None:
        self._pids.pop(pid)
        with suppress(ProcessLookupError):  # it failed: it has said why
            os.kill(pid, signal.SIGKILL)
        ends = time.monotonic() + PATIENCE_S
        with suppress(FileNotFoundError):
            while os.stat(f"/proc/{pid}"):
                assert time.monotonic() < ends
                time.sleep(0.001)

    def heard(self) -> Iterator[Told]:
        """All that they were answered."""
        assert [path.read_text() for path in self.told.glob("*.error")] == []
        for path in self.told.iterdir():
            *whole, _ = path.read_bytes().split(b"\n")
            yield from (msgspec.json.decode(line, type=Told) for line in whole)


async def set_up(storage: Storage, limits: RateLimits) -> None:
    keys = [
        make_key(id=key, digest=key, budget_nanos=BUDGET * (key == "budget") or None,
                 monthly_nanos=BUDGET * (key == "monthly") or None, limits=SLOW if key == "slow" else None)
        for key in KEYS if key
    ]  # fmt: skip
    await Till(storage).open(*keys, credit=FIRST, prepaid=True, monthly_nanos=FIRST, limits=limits)


class Patron(threading.Thread):
    """Gives more money, to the balance and to the month in turn, so that now one is short and now the other."""

    def __init__(self, opened: Callable[[], Storage], limits: RateLimits) -> None:
        super().__init__(daemon=True)
        self._opened = opened
        self._limits = limits
        self._ended = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            anyio.run(self._give)
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        """Give no more."""
        self._ended.set()
        self.join(PATIENCE_S)
        assert self.error is None, self.error

    async def _give(self) -> None:
        storage = self._opened()
        till, number, most = Till(storage), 0, FIRST
        while not self._ended.is_set():
            number += 1
            with suppress(StorageUnavailable):  # the database was killed
                if number // 4 % 2:
                    await till.put(AddCredit(f"more{number}", MORE, AT))
                else:
                    most += MORE
                    await till.put(PutAccount(make_account(prepaid=True, monthly_nanos=most, limits=self._limits)))
            await anyio.sleep(0.1)
        await storage.aclose()


@contextmanager
def shell(path: Path) -> Iterator[None]:
    """Somebody looks at the file, with long reads that stand in the way of moving the log."""
    ended = threading.Event()

    def look() -> None:
        with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as connection:
            while not ended.is_set():
                connection.execute("BEGIN")
                connection.execute("SELECT count(*) FROM ledger").fetchall()
                ended.wait(0.3)
                connection.execute("COMMIT")
                ended.wait(0.1)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    yield
    ended.set()
    thread.join(PATIENCE_S)


class Found(NamedTuple):
    """What there is at the end."""

    charges: dict[str, int]
    """By call."""
    expired: set[str]
    """Calls with an expired row."""
    results: dict[str, str]
    """By call whose answer is kept."""


def live(folder: Path, chance: Random, *, processes: int, kills: int) -> Crew:
    """Let them spend while they are killed and stopped."""
    path = folder / "traces.db"
    storage = SqliteStorage(path, clock=Fast(), lease_s=LEASE_S)
    anyio.run(set_up, storage, LIMITS)
    storage._close()
    with closing(connect(str(path))) as connection:
        connection.executescript(TRIGGER)
    crew = Crew(folder, chance)
    patron = Patron(lambda: SqliteStorage(path, clock=Fast(), lease_s=LEASE_S, busy_s=PATIENCE_S), LIMITS)
    try:
        patron.start()
        for role in ("spend",) * (processes - 2) + ("idle", "read"):
            crew.start(role)
        with shell(path):
            for number in range(kills):
                time.sleep(chance.uniform(0.05, 0.3))
                if number % 4 == 3:
                    stopped = crew.stop_one()
                    time.sleep(1.5 * LEASE)
                    crew.go_on(stopped)
                crew.kill_one()
            time.sleep(WINDOW_S / TIMES)
    finally:
        crew.close()
        patron.end()
    time.sleep(1.2 * LEASE)
    return crew


async def sweep(path: Path) -> list[Any]:
    """One who comes later finds nothing held."""
    storage = SqliteStorage(path, clock=Fast(), lease_s=LEASE_S)
    await storage.sweep(0.0)
    found = [await storage.read("acme", Stands(AT, key)) for key in KEYS]
    counts = await storage.read("acme", UsageCounts(first=DAY, last=DAY, environment=None, group_by="model"))
    await storage.aclose()
    return [*found, counts]


def audited(path: Path) -> Audit:
    """Fold each tick by itself, and hold it to what the purses said then and what the limits were."""
    tokens = {"account:production:acme": TOKENS, "key:acme\0slow": SLOW.tokens_per_min or 0}
    audit = Audit({"key:budget": BUDGET, f"key:monthly:{MONTH[6:]}": BUDGET}, tokens)
    with closing(connect(str(path))) as connection:
        rows = connection.execute("SELECT n, owner, at, ops, purses, terms FROM audited ORDER BY n").fetchall()
    last = 0.0
    audit.n = rows[0][0] - 1
    for n, owner, at, ops, purses, terms in rows:
        assert n == audit.n + 1, "a number is missing, or was used twice"
        assert at >= last, "the log's time runs backwards"
        audit.n, last = n, at
        booked = json.loads(purses)
        audit.limits["account"] = booked["account"][1]
        audit.limits[MONTH] = msgspec.json.decode(terms, type=Account).monthly_nanos or 0
        audit.fold(owner, at, msgspec.msgpack.decode(ops, type=Tick))
        for name, (spent, _) in booked.items():
            assert audit.spent[name] == spent, f"tick {n}: {name} is not what the log comes to"
    return audit


def found_in(path: Path) -> Found:
    with closing(connect(str(path))) as connection:
        rows = connection.execute("SELECT name, kind, charge FROM ledger WHERE kind <> 'credit'").fetchall()
        results = connection.execute("SELECT call, result FROM kept").fetchall()
    charges: Counter[str] = Counter()
    for name, kind, charge in rows:
        if kind == "attempt":
            charges[name.partition("/")[0]] += charge
    expired = {name.partition("/")[0] for name, kind, _ in rows if kind == "expired"}
    return Found(dict(charges), expired, {call: result.decode() for call, result in results})


def check_answers(crew: Crew, found: Found, audit: Audit) -> Counter[str]:
    """Nothing that was told is lost, doubled or wrong. Says how often what was told."""
    heard, by_key = Counter[str](), dict[str, str]()
    told = [*crew.heard()]
    late = set(audit.expired)
    for each in told:
        heard[f"{each.what} {each.result}" if each.what == "refused" else each.what] += 1
        if each.what == "settled":
            assert each.call in found.charges, "a settlement that was answered is lost"
            charge = found.charges[each.call]
            assert charge == each.charge or (charge == 0 and each.call in late), f"{each} is charged {charge}"
            if each.call not in late or each.call in found.results:
                assert by_key.setdefault(each.key, each.call) == each.call, f"{each.key} was answered twice"
                assert found.results[each.call] == each.call
    for each in told:
        if each.what == "replayed":
            assert each.result in found.results, "an answer was given that is not kept"
            assert by_key.setdefault(each.key, each.result) == each.result, f"{each.key} was answered twice"
    heard["late"] = len([each for each in told if each.what == "settled" and each.call in late])
    return heard


def check_times(crew: Crew, audit: Audit) -> None:
    """Calls were admitted when the log says so."""
    ahead = [audit.times[each.call] - each.ended for each in crew.heard() if each.what == "admitted"]
    behind = [audit.times[each.call] - each.began for each in crew.heard() if each.what == "admitted"]
    assert max(ahead) <= min(behind), "no offset of the log's clock fits all"


def check_sums(path: Path, found: Found, audit: Audit) -> None:
    """Rows, purses, traces and analytics come to the same, and nothing is reserved."""
    *standings, counts = anyio.run(sweep, path)
    for standing in standings:
        assert all(purse.reserved_nanos == 0 for purse in standing.purses)
    purses = {purse.name: purse.spent_nanos for standing in standings for purse in standing.purses}
    spent = sum(found.charges.values())
    assert purses["account"] == purses[MONTH] == spent
    assert sum(count.charged_nanos for count in counts.all) == spent
    with closing(connect(str(path))) as connection:
        traces = {call: json.loads(body) for call, body in connection.execute(
            "SELECT id, body.trace FROM trace JOIN body USING (n)")}  # fmt: skip
        connection.executescript("DROP TRIGGER audit; DROP TABLE audited")
    assert set(traces) == set(found.charges)
    for call, trace in traces.items():
        assert round(trace.get("charged_usd", 0.0) * 1e9) == found.charges[call]
    assert found.expired == {call for call in audit.expired if call not in found.charges}
    assert_sound(path)


def test_killed_stopped_and_idle_processes_lose_no_answer_and_break_no_limit(tmp_path: Path, full: bool) -> None:
    chance = Random(1)
    crew = live(tmp_path, chance, processes=8 if full else 5, kills=200 if full else 4)
    anyio.run(sweep, crew.path)
    audit, found = audited(crew.path), found_in(crew.path)
    heard = check_answers(crew, found, audit)
    check_times(crew, audit)
    check_sums(crew.path, found, audit)
    windows = audit.most_in_a_window(WINDOW_S)
    assert audit.held == []
    assert max(audit.ended.values()) == 1
    assert windows["account:production:acme"] <= REQUESTS
    assert windows["key:acme\0slow"] <= (SLOW.requests_per_min or 0)
    assert audit.most_slots["account:production:acme"] <= SLOTS
    print(dict(heard), windows, dict(audit.most_slots), dict(audit.most_tokens),
          f"{len(audit.expired)} expired", f"{audit.n} ticks", f"{sum(found.charges.values())} spent")  # fmt: skip
    hit = {said.removeprefix("refused ") for said in heard if said.startswith("refused ")}
    assert hit >= (EACH if full else {"concurrency"})  # how much a short run reaches depends on the machine
    assert heard["replayed"]
    assert audit.expired
