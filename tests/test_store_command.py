"""``routewright store``: a store is backed up with its secret, checked, upgraded, and told how long to keep traces."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import stat
import sys
from contextlib import closing
from pathlib import Path

import pytest

from routewright._setup.root_secret import secret_path
from routewright.backends.storage.sqlite import schema
from routewright.cli import main

from .sample_store import listed, record, trace

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
ON_LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it is said otherwise there")


@pytest.fixture(autouse=True)
def _the_store_is_named(monkeypatch: Patch, recorded: Path) -> None:
    monkeypatch.setenv("ROUTEWRIGHT_STORE", "traces.db")


@pytest.fixture
def path(recorded: Path) -> Path:
    return recorded


def store(*argv: str) -> int:
    return main(["store", *argv])


def damage(path: Path) -> None:
    """Make a trace unreadable, as a fault of the disk would."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE body SET trace = x'00' WHERE n = (SELECT n FROM trace WHERE id = 'tr_oldest')")
        connection.commit()


# backup


def test_a_backup_includes_the_secret_readable_by_its_owner_only(path: Path, capsys: Capture) -> None:
    before = listed(capsys)
    assert listed(capsys, "--limit", "1")  # whose further pages make the secret
    assert store("backup", "copy.db") == 0
    said = "copy.db.secret, which only you can read: keep it with the backup, and as safe"
    assert capsys.readouterr() == (f"backup  copy.db\nsecret  {said}\n", "")
    assert listed(capsys, "--store", "copy.db") == before
    secret = Path("copy.db.secret")
    assert secret.read_bytes() == Path(f"{path}.secret").read_bytes()
    if os.name == "posix":
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def test_a_store_without_a_secret_of_its_own_says_so(monkeypatch: Patch, capsys: Capture) -> None:
    assert store("backup", "one.db") == 0
    assert "\nsecret  none was copied: the store has none yet\n" in capsys.readouterr().out
    monkeypatch.setenv("ROUTEWRIGHT_SECRET", "0123456789abcdef" * 4)
    assert store("backup", "two.db") == 0
    assert "\nsecret  none was copied: it is in ROUTEWRIGHT_SECRET\n" in capsys.readouterr().out
    assert not list(Path().glob("*.secret"))
    assert store("backup", "three.db", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"backup": "three.db", "secret": None}


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("there.db", "TARGET: there.db exists; name a new file"),
        ("new.db", "TARGET: new.db.secret exists; name a new file"),
        ("a\0b", "TARGET: names no file; name a new file, such as copy.db"),
        ("no/such/new.db", "TARGET: there is no folder no/such; create it first"),
    ],
)
def test_a_backup_replaces_nothing(target: str, said: str, capsys: Capture) -> None:
    assert listed(capsys, "--limit", "1")  # whose further pages make the secret
    Path("there.db").write_text("precious")
    Path("new.db.secret").write_text("precious")
    assert store("backup", target) == 2
    assert capsys.readouterr() == ("", f"routewright: {said}\n")
    assert Path("there.db").read_text() == Path("new.db.secret").read_text() == "precious"
    assert not Path("new.db").exists()


@pytest.mark.parametrize("end", ["-wal", ".secret"])
def test_a_backup_may_not_take_the_name_of_a_store_file(end: str, path: Path, capsys: Capture) -> None:
    assert store("backup", f"traces.db{end}") == 2
    said = f"TARGET: traces.db{end} belongs to the store {path}, which would be lost; name another file"
    assert capsys.readouterr() == ("", f"routewright: {said}\n")
    assert not Path(f"traces.db{end}").exists()


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        pytest.param("/proc/copy.db", "it cannot be opened", marks=ON_LINUX),
        pytest.param("x" * 300, "File name too long", marks=ON_LINUX),
    ],
    ids=["folder", "name"],
)
def test_a_backup_that_cannot_be_written_names_its_target(target: str, reason: str, capsys: Capture) -> None:
    assert store("backup", target) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"routewright: {target}")
    assert reason in err


# check


def test_check_reports_a_sound_store(path: Path, capsys: Capture) -> None:
    assert store("check") == 0
    out = capsys.readouterr().out
    assert out.splitlines()[:3] == [f"store      {path}", f"version    {schema.latest()}", "traces     6"]
    assert out.endswith(" kB\n\nsound\n")
    assert store("check", "traces.db", "--store", "traces.db") == 2
    assert capsys.readouterr().err == "routewright: STORE: is given twice; give it alone, or as --store\n"
    assert store("check", "traces.db", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["store"], found["traces"], found["problems"]) == (str(path), 6, [])


def test_a_null_value_is_damage_and_no_backup_is_made(path: Path, capsys: Capture) -> None:
    with closing(sqlite3.connect(path)) as connection:
        of_table = "UPDATE sqlite_master SET sql = replace(sql, 'saved_nanos INTEGER{}', 'saved_nanos INTEGER{}')"
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(of_table.format(" NOT NULL", ""))
        connection.execute("PRAGMA writable_schema = RESET")
        connection.execute("INSERT INTO cache_use VALUES ('acme', 'production', '2026-11-20', '1h', 1, NULL)")
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(of_table.format("", " NOT NULL"))
        connection.commit()
    assert store("check") == 1
    assert "NULL value in cache_use.saved_nanos" in capsys.readouterr().out
    assert store("backup", "copy.db") == 1
    assert capsys.readouterr().err.endswith("is damaged, so the backup is: NULL value in cache_use.saved_nanos\n")
    assert not Path("copy.db").exists()


def test_a_damaged_store_is_1_and_lists_the_damage(path: Path, capsys: Capture) -> None:
    damage(path)
    assert store("check") == 1
    out = capsys.readouterr().out
    assert "trace 'tr_oldest' (row " in out
    assert out.endswith("\ndamaged: restore a backup\n")
    assert store("check", "--json") == 1
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 1


def test_a_store_of_a_newer_version_is_neither_sound_nor_damaged(path: Path, capsys: Capture) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA user_version = 99")
        connection.execute("ALTER TABLE trace RENAME TO traces")
    known = schema.latest()
    said = f"{path} is of version 99, and this routewright knows versions up to {known}; install a newer one"
    assert main(["traces", "ls"]) == store("check") == 1
    assert capsys.readouterr() == ("", f"routewright: {said}\n" * 2)
    assert store("check", "--json") == 1
    assert json.loads(capsys.readouterr().out)["error"]["message"] == said


def test_keys_of_a_lost_or_different_secret_are_counted(monkeypatch: Patch, capsys: Capture) -> None:
    def keys() -> object:
        capsys.readouterr()
        store("check", "--json")
        return json.loads(capsys.readouterr().out)["keys"]

    assert keys() == {"live": 0, "of_another_secret": 0}
    main(["accounts", "create", "acme"])
    for name in "abc":
        main(["keys", "create", "acme", "--name", name])
    assert main(["keys", "ls", "acme", "--json"]) == 0
    revoked = json.loads(capsys.readouterr().out.splitlines()[-1])["keys"][0]["id"]
    main(["keys", "revoke", "acme", revoked, "--yes"])
    main(["keys", "create", "_system", "--name", "ada", "--scope", "console:read"])
    assert keys() == {"live": 3, "of_another_secret": 0}
    main(["secret", "rotate"])
    assert keys() == {"live": 3, "of_another_secret": 0}, "the one before it holds"
    monkeypatch.setenv("ROUTEWRIGHT_SECRET", "0123456789abcdef" * 4)
    assert keys() == {"live": 3, "of_another_secret": 3}
    monkeypatch.delenv("ROUTEWRIGHT_SECRET")
    secret_path(Path("traces.db")).unlink()
    assert keys() == {"live": 3, "of_another_secret": 3}
    assert store("check") == 1
    out = capsys.readouterr().out
    assert "live keys  3\n" in out
    assert (
        "3 of 3 live keys belong to another root secret, and are refused; restore the secret's file from the backup, "
        "or set ROUTEWRIGHT_SECRET\nsound, but its keys are refused\n"
    ) in out
    assert not secret_path(Path("traces.db")).exists(), "who only looks makes none"


# upgrade


def test_upgrade_leaves_a_current_store_unchanged(path: Path, capsys: Capture) -> None:
    before = path.read_bytes()
    assert store("upgrade", "traces.db") == 0
    assert capsys.readouterr() == ("", f"{path} is up to date\n")
    assert path.read_bytes() == before


def test_the_command_in_the_error_upgrades_an_old_store(path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    version, longer = schema.latest(), (*schema.MIGRATIONS, "CREATE TABLE later (a INTEGER);\n")
    monkeypatch.setattr(schema, "MIGRATIONS", longer)
    assert main(["traces", "ls"]) == 1
    assert f"'routewright store upgrade {path}'" in capsys.readouterr().err
    assert store("upgrade", str(path)) == 0
    assert capsys.readouterr().err == f"{path} is upgraded; the old file is {path}.version-{version}\n"
    assert len(listed(capsys)) == 5
    assert store("upgrade", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"store": str(path), "upgraded": False, "backup": None}


# retain


def test_retain_changes_the_given_days_and_removes_older_traces(
    tmp_path: Path, monkeypatch: Patch, capsys: Capture
) -> None:
    old = [trace("tr_old", 24 * 10), trace("tr_played", 20, environment="sandbox"), trace("tr_new")]
    record(tmp_path / "own.db", old)
    monkeypatch.setenv("ROUTEWRIGHT_STORE", "own.db")
    assert store("retain", "--production-days", "7.5") == 0
    assert capsys.readouterr().out.startswith("production days  7.5\nsandbox days     1\nremoved          1\n")
    assert listed(capsys) == ["tr_new", "tr_played"]
    assert store("retain", "--sandbox-days", "forever", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"production_days": 7.5, "sandbox_days": None, "removed": 0}
    assert store("retain", "--production-days", "forever") == 0
    assert capsys.readouterr().out.startswith("production days  for ever\nsandbox days     for ever\n")


@pytest.mark.parametrize("days", ["0", "nan", "1e9"])
def test_an_invalid_retention_is_refused(days: str, capsys: Capture) -> None:
    assert store("retain", f"--production-days={days}") == 2
    said = r"routewright: --production-days: is .*; take a number of days above 0, at most 36500, or forever\n"
    assert re.fullmatch(said, capsys.readouterr().err)
    assert store("retain") == 0
    assert capsys.readouterr().out.startswith("production days  30\n")
