"""``routewright accounts``, ``keys``, ``incidents`` and ``secret``: what is set up is shown, and a key once."""

from __future__ import annotations

import json
import logging
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest

from routewright import Console
from routewright._setup.root_secret import secret_path
from routewright.cli import main
from routewright.errors import AuthenticationFailed
from routewright.wire import Caller
from tests.contracts.storage.samples import make_row

from .billing import book, hold

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

pytestmark = pytest.mark.usefixtures("acme")

ACCOUNT = """\
name                     acme
created                  2026-11-22 12:00:00Z
plan                     pro
limits requests per min  600
limits tokens per min    600,000
limits concurrency       25
"""


@pytest.fixture(autouse=True)
def _the_store_is_named(monkeypatch: Patch, noon: None) -> None:
    monkeypatch.setenv("ROUTEWRIGHT_STORE", "traces.db")


@pytest.fixture
def acme(capsys: Capture) -> str:
    """An account that is set up."""
    assert main(["accounts", "create", "acme", "--plan", "pro"]) == 0
    capsys.readouterr()
    return "acme"


def told(capsys: Capture, *argv: str) -> Any:
    """What a command says as JSON."""
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: Capture, *argv: str, code: int = 2) -> str:
    """What a command that fails says, and nothing but that."""
    assert main([*argv]) == code
    out, err = capsys.readouterr()
    assert out == ""
    return err.removeprefix("routewright: ").removesuffix("\n")


def make_key(capsys: Capture, *options: str) -> tuple[str, str]:
    """A key, and its id."""
    made = told(capsys, "keys", "create", "acme", "--name", "website", *options)
    return made["key"], made["id"]


def holds(key: str) -> bool:
    """Whether a key is taken."""
    console = Console("sqlite:///traces.db").blocking
    try:
        console.authenticate(f"Bearer {key}")
    except AuthenticationFailed:
        return False
    finally:
        console.close()
    return True


# accounts


def test_the_first_account_creates_the_store(capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setenv("ROUTEWRIGHT_STORE", "first.db")
    before = {*Path().iterdir()}
    assert refused(capsys, "accounts", "ls") == (
        f"there is no store {Path('first.db').absolute()}; "
        "'routewright serve', 'route', 'agent', 'accounts create' and 'policies draft' create one"
    )
    assert {*Path().iterdir()} == before
    assert main(["accounts", "create", "acme", "--plan", "pro"]) == 0
    assert capsys.readouterr() == (ACCOUNT, "")
    assert {*Path().iterdir()} == before | {Path("first.db")}


def test_an_account_is_set_up_with_all_its_terms(capsys: Capture) -> None:
    terms = ["--plan", "team", "--requests-per-min", "7", "--prepaid", "--monthly-limit", "12.5", "--daily-limit", "2",
             "--tag-limit", "team:weekly=3", "--tag-limit", "team=search:daily=1,monthly=2.5"]  # fmt: skip
    assert told(capsys, "accounts", "create", "Ünal & Co.", *terms) == {
        "name": "Ünal & Co.",
        "created_at": "2026-11-22T12:00:00.000Z",
        "plan": "team",
        "limits": {"requests_per_min": 7, "tokens_per_min": 3_000_000, "concurrency": 100},
        "own_limits": {"requests_per_min": 7, "tokens_per_min": None, "concurrency": None},
        "prepaid": True,
        "daily_limit_usd": 2.0,
        "weekly_limit_usd": None,
        "monthly_limit_usd": 12.5,
        "tag_limits": ["team:weekly=3", "team=search:daily=1,monthly=2.5"],
    }
    main(["accounts", "create", "free for all", "--plan", "unlimited"])
    capsys.readouterr()
    assert main(["accounts", "ls"]) == 0
    head, *rows = (re.split(r"  +", line) for line in capsys.readouterr().out.splitlines())
    limits = ["requests per min", "tokens per min", "concurrency"]
    assert head == ["name", "plan", *limits, "prepaid", "monthly limit", "created"]
    assert rows == [
        ["acme", "pro", "600", "600,000", "25", "2026-11-22 12:00:00Z"],
        ["free for all", "unlimited", "2026-11-22 12:00:00Z"],
        ["Ünal & Co.", "team", "7", "3,000,000", "100", "yes", "$12.5", "2026-11-22 12:00:00Z"],
    ]
    assert [each["name"] for each in told(capsys, "accounts", "ls")["accounts"]] == [
        "acme", "free for all", "Ünal & Co.",
    ]  # fmt: skip


def test_a_change_says_that_all_tag_limits_are_replaced(acme: str, capsys: Capture) -> None:
    change = ["accounts", "change", acme]
    for options, note in (
        (["--tag-limit", "team:daily=10", "--tag-limit", "user:weekly=3"], "all tag limits are replaced\n"),
        (["--plan", "pro"], ""),
    ):
        assert main([*change, *options]) == 0
        assert capsys.readouterr().err == note
    said = refused(capsys, *change, "--tag-limit", "metadata.team:daily=10")
    assert said == "key: is 'metadata.team'; limit a metadata key, without 'metadata.' and without '='"


def test_the_limits_of_a_key_are_listed_where_one_has_them(acme: str, capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "policies.toml"
    file.write_text('[[policies]]\nname = "support"\n')
    assert main(["policies", "draft", str(file)]) == 0
    capsys.readouterr()
    make_key(capsys)
    make_key(capsys, "--models", "openai/*", "--policies", "support", "--daily-limit", "2", "--weekly-limit", "5")
    assert main(["keys", "ls", acme]) == 0
    head, *rows = (re.split(r"  +", line) for line in capsys.readouterr().out.splitlines())
    assert head[7:] == ["models", "policies", "daily limit", "weekly limit"]
    assert [row[-4:] for row in rows if row[-1] == "$5"] == [["openai/*", "support", "$2", "$5"]]
    assert main(["accounts", "show", acme]) == 0
    titles = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("id "))
    assert re.split(r"  +", titles)[8:] == ["day spent", "day limit", "week spent", "week limit", "models", "policies"]


def test_credit_prints_the_balance(acme: str, capsys: Capture) -> None:
    assert main(["accounts", "credit", acme, "10"]) == 0
    assert (
        capsys.readouterr().err == "the account is not prepaid; the credit is used after 'accounts change --prepaid'\n"
    )
    main(["accounts", "change", acme, "--prepaid"])
    capsys.readouterr()
    assert main(["accounts", "credit", acme, "2.5", "--id", "invoice 7", "--note", "paid"]) == 0
    assert capsys.readouterr() == ("id       invoice 7\nusd      $2.5\ncreated  yes\nbalance  $12.5\n", "")
    assert main(["accounts", "credit", acme, "2.5", "--id", "invoice 7"]) == 0
    said = ("id       invoice 7\nusd      $2.5\nbalance  $12.5\n", "this id was credited before; nothing is added\n")
    assert capsys.readouterr() == said
    assert told(capsys, "accounts", "credit", acme, "-20.25", "--id", "back")["balance_usd"] == -7.75


def test_show_prints_the_standing_of_an_account(acme: str, capsys: Capture) -> None:
    main(["accounts", "change", acme, "--prepaid", "--monthly-limit", "4"])
    main(["accounts", "credit", acme, "10"])
    capsys.readouterr()
    _, key_id = make_key(capsys, "--budget", "2")

    async def spend() -> None:
        console = Console("sqlite:///traces.db")
        at = "2026-11-22T11:00:00.000Z"
        row = make_row("c1", charge=1_250_000_000, at=at)
        await book(console._storage, acme, row, key_id=key_id)
        await hold(console._storage, "c2", 125_000_000, at, Caller(acme))
        await console.aclose()

    anyio.run(spend)
    assert main(["accounts", "show", acme]) == 0
    assert capsys.readouterr().out.splitlines()[-8:] == [
        "balance                  $8.75",
        "month spent              $1.25",
        "month limit              $4",
        "month reserved           $0.125",
        "month percent            31.2",
        "",
        "id                              name     revoked  total spent  total limit  month spent  month limit  "
        "month reserved",
        f"{key_id}  website                 $1.25           $2        $1.25                           $0",
    ]
    shown = told(capsys, "accounts", "show", acme)
    assert shown["balance_usd"] == 8.75
    assert shown["month"] == {"spent_usd": 1.25, "limit_usd": 4.0, "reserved_usd": 0.125, "percent": 31.25}
    assert shown["keys"][0]["total"]["percent"] == 62.5


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["accounts", "create", "acme"],
         "NAME: 'acme' exists already; 'routewright accounts change' changes its terms"),
        (["accounts", "create", "default"], "NAME: 'default' stands for calls without an account; use another name"),
        (["accounts", "show", "umbra"], "no account 'umbra'"),
        (["accounts", "credit", "acme", "0"], "USD: is less than a nano-dollar; use a larger amount"),
        (["accounts", "change", "acme", "--plan", "enterprise"],
         "--requests-per-min, --tokens-per-min, --concurrency: are missing: the plan 'enterprise' has none of its own; "
         "give at least one of them"),
        (["accounts", "change", "acme", "--concurrency", "-1"],
         "--requests-per-min, --tokens-per-min, --concurrency: has concurrency=-1; take a whole number of at least 0"),
        (["keys", "create", "acme", "--name", "x", "--scope", "routes"], "--scope: is 'routes'; did you mean 'route'?"),
        (["keys", "change", "acme", "key_1"],
         "no change is given; give at least one of --name, --scope, --budget, --daily-limit, "
         "--weekly-limit, --monthly-limit, --models, --policies, --requests-per-min, --tokens-per-min, --concurrency"),
        (["accounts", "change", "acme"],
         "no change is given; give at least one of --plan, --prepaid, --daily-limit, "
         "--weekly-limit, --monthly-limit, --tag-limit, --requests-per-min, --tokens-per-min, --concurrency"),
        (["keys", "create", "_system", "--name", "x"], "--scope: are missing for an operator's key; pass a list of "),
        (["keys", "create", "_system", "--name", "x", "--scope", "console:read", "--concurrency", "3"],
         "--requests-per-min, --tokens-per-min, --concurrency: cannot be set for an operator's key; leave it out"),
        (["incidents", "open", "x", "--status-url", "x"], "--status-url: is 'x'; start it with https://"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)  # fmt: skip
def test_errors_of_the_console_name_options(argv: list[str], said: str, capsys: Capture) -> None:
    assert refused(capsys, *argv).startswith(said)


@pytest.mark.parametrize(
    "argv",
    [
        ["accounts"], ["accounts", "create", "x", "--concurrency", "many"], ["accounts", "credit", "acme", "some"],
        ["store", "retain", "--sandbox-days", "long"], ["keys", "change", "acme", "key_1", "--environment", "sandbox"],
    ],
)  # fmt: skip
def test_an_invalid_command_line_is_2(argv: list[str], capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(argv)
    assert "usage: routewright" in capsys.readouterr().err


# keys


def test_a_new_key_goes_to_stdout_alone(capsys: Capture) -> None:
    assert main(["keys", "create", "acme", "--name", "website"]) == 0
    out, err = capsys.readouterr()
    key = out.removesuffix("\n")
    assert key.startswith("sk_live_")
    assert out.count("\n") == 1
    (listed,) = told(capsys, "keys", "ls", "acme")["keys"]
    assert err == f"{listed['id']} of acme, production: save the key now; it is not shown again\n"
    assert holds(key)


def test_a_key_is_made_with_all_its_terms(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "policies.toml"
    file.write_text("".join(f'[[policies]]\nname = "{name}"\n' for name in ("support", "a", "b")))
    assert main(["policies", "draft", str(file)]) == 0
    capsys.readouterr()
    options = ["--environment", "sandbox", "--scope", "route,models:read", "--scope", "agents", "--tokens-per-min", "9",
               "--models", "openai/*,provider:google", "--policies", "support"]  # fmt: skip
    made = told(capsys, "keys", "create", "acme", "--name", "x", *options, "--budget", "5", "--monthly-limit", "0.5",
                "--weekly-limit", "0.25")  # fmt: skip
    key = made.pop("key")
    assert key.startswith("sk_test_")
    assert made == {
        "id": made["id"],
        "account": "acme",
        "environment": "sandbox",
        "name": "x",
        "prefix": key[:12],
        "created_at": "2026-11-22T12:00:00.000Z",
        "revoked_at": None,
        "budget_usd": 5.0,
        "daily_limit_usd": None,
        "weekly_limit_usd": 0.25,
        "monthly_limit_usd": 0.5,
        "models": ["openai/*", "provider:google"],
        "policies": ["support"],
        "scopes": ["route", "agents", "models:read"],
        "limits": {"requests_per_min": None, "tokens_per_min": 9, "concurrency": None},
    }
    assert told(capsys, "keys", "ls", "acme")["keys"] == [made]
    changed = told(capsys, "keys", "change", "acme", made["id"], "--models", "all", "--policies", "a,b")
    assert (changed["models"], changed["policies"]) == (None, ["a", "b"])


def test_a_key_may_use_models_of_a_catalogue_file(capsys: Capture, tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text('[[models]]\nid = "mine/one"\ncontext_window = 8000\nquality = 0.5\n')
    key = ("keys", "create", "acme", "--name", "x", "--models")
    assert refused(capsys, *key, "openai/gpt-4.1-mimi").startswith(
        "--models[0]: unknown model 'openai/gpt-4.1-mimi'; did you mean 'openai/gpt-4.1-mini'?; models of your own"
    )
    assert refused(capsys, *key, "mine/*").endswith("are known once a trace used them, or with --catalogue")
    made = told(capsys, *key, "mine/*", "--catalogue", str(file))
    assert made["models"] == ["mine/*"]
    told(capsys, "keys", "change", "acme", made["id"], "--models", "mine/one", "--catalogue", str(file))


def test_keys_are_listed_and_revoked(capsys: Capture) -> None:
    assert main(["keys", "ls", "acme"]) == 0
    assert capsys.readouterr() == ("", "the account has no key\n")
    key, key_id = make_key(capsys, "--scope", "route")
    kept, kept_id = make_key(capsys, "--environment", "sandbox")
    assert main(["keys", "revoke", "acme", key_id, "--yes"]) == 0
    assert capsys.readouterr() == ("", f"{key_id} of acme is revoked\n")
    assert (holds(key), holds(kept)) == (False, True)
    assert told(capsys, "keys", "revoke", "acme", key_id, "-y")["revoked_at"] == "2026-11-22T12:00:00.000Z"
    assert main(["keys", "ls", "acme"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["id", "name", "prefix", "environment", "created", "revoked", "scopes"]
    assert sorted(line.split()[:4] for line in lines) == sorted([
        [key_id, "website", key[:12], "production"], [kept_id, "website", kept[:12], "sandbox"],
    ])  # fmt: skip
    assert ["2026-11-22 12:00:00Z  2026-11-22 12:00:00Z  route" in line for line in lines].count(True) == 1


def test_a_change_of_a_key_changes_only_the_given_limits(capsys: Capture) -> None:
    _, key_id = make_key(capsys, "--scope", "route", "--concurrency", "3", "--budget", "5")
    (before,) = told(capsys, "keys", "ls", "acme")["keys"]
    change = ["keys", "change", "acme", key_id]
    changed = told(capsys, *change, "--requests-per-min", "7")
    assert changed == {name: before[name] for name in changed} | {
        "limits": {"requests_per_min": 7, "tokens_per_min": None, "concurrency": 3}
    }
    changed = told(
        capsys, *change, "--name", "shop", "--scope", "route,agents", "--budget", "9", "--monthly-limit", "2"
    )
    assert (changed["name"], changed["scopes"]) == ("shop", ["route", "agents"])
    assert (changed["budget_usd"], changed["monthly_limit_usd"]) == (9.0, 2.0)
    without = ["--requests-per-min", "none", "--concurrency", "none", "--budget", "none", "--monthly-limit", "none"]
    changed = told(capsys, *change, *without, "--scope", "all")
    assert (changed["limits"], changed["budget_usd"], changed["monthly_limit_usd"]) == (None, None, None)
    assert len(changed["scopes"]) == 6
    assert told(capsys, "keys", "ls", "acme")["keys"] == [changed]


def test_revoke_needs_a_yes(capsys: Capture) -> None:
    key, key_id = make_key(capsys)
    named = f"the key 'website', {key[:12]}..., of acme"
    assert refused(capsys, "keys", "revoke", "acme", key_id) == (
        f"{named} would be revoked permanently; repeat with --yes to do it"
    )
    assert holds(key)


def test_only_create_prints_a_key_or_a_secret(capsys: Capture, caplog: pytest.LogCaptureFixture) -> None:
    key, key_id = make_key(capsys, "--budget", "5")
    caplog.set_level(logging.DEBUG)
    secret = secret_path(Path("traces.db")).read_text().strip()
    for argv in (
        ["accounts", "ls"], ["accounts", "show", "acme"], ["accounts", "show", key], ["accounts", "create", key],
        ["keys", "ls", "acme"], ["keys", "ls", key], ["keys", "create", "acme", "--name", key],
        ["keys", "revoke", "acme", key, "-y"], ["keys", "revoke", key, key_id, "-y"], ["incidents", "open", key],
        ["incidents", "resolve", key], ["accounts", "credit", "acme", "1", "--note", key], ["secret", "rotate"],
        ["secret", "rotate"], ["accounts", "credit", "acme", "1", "--id", key],
        ["keys", "change", "acme", key_id, "--name", key], ["keys", "change", "acme", key, "--budget", "1"],
        ["keys", "revoke", "acme", key_id, "-y"],
    ):  # fmt: skip
        for more in ([], ["--json"]):
            main([*argv, *more])
    out, err = capsys.readouterr()
    for said in (out, err, caplog.text):
        assert key[:20] not in said
        assert secret not in said
        assert all(line not in said for line in secret_path(Path("traces.db")).read_text().split())


# incidents


def test_an_incident_is_opened_listed_and_resolved(capsys: Capture) -> None:
    assert main(["incidents", "ls"]) == 0
    assert capsys.readouterr() == ("", "there is no incident\n")
    opened = told(capsys, "incidents", "open", "All is slow", "--status-url", "https://status.example/7")
    assert (opened["severity"], opened["resolved_at"]) == ("major", None)
    assert main(["incidents", "open", "Nothing works", "--severity", "critical"]) == 0
    said = capsys.readouterr().err
    assert "is open; 'routewright incidents resolve inc_" in said
    assert main(said.split("'")[1].removeprefix("routewright ").split()) == 0
    assert capsys.readouterr() == ("", f"{said.split()[0]} is resolved\n")
    assert main(["incidents", "ls"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == "id severity started resolved title".split()
    assert sorted(line.split()[1:] for line in lines[1:]) == [  # both began at noon
        ["critical", "2026-11-22", "12:00:00Z", "2026-11-22", "12:00:00Z", "Nothing", "works"],
        ["major", "2026-11-22", "12:00:00Z", "All", "is", "slow"],
    ]
    assert {each["title"] for each in told(capsys, "incidents", "ls")["incidents"]} == {"Nothing works", "All is slow"}


# secret


def test_used_keys_move_to_the_new_root_secret(capsys: Capture) -> None:
    used, _ = make_key(capsys)
    idle, _ = make_key(capsys)
    assert main(["secret", "rotate"]) == 0
    said = "the secret is changed; the previous one stays valid until the next change, and keys move over when used\n"
    assert capsys.readouterr() == ("", said)
    assert holds(used)
    assert refused(capsys, "secret", "rotate") == (
        "1 live key was not used since the last rotation: 'website of acme'; use or revoke them, "
        "or pass --force to invalidate them"
    )
    assert told(capsys, "secret", "rotate", "--force") == {"rotated": True}
    assert (holds(used), holds(idle)) == (True, False)


# who runs meanwhile


# a key in a wrong place

STRAY = "sk_live_" + "Canary0" * 4 + "abcde"
PLACES = [
    ["traces", "show", STRAY], ["traces", "ls", STRAY], ["traces", "ls", "--account", STRAY],
    ["traces", "delete", STRAY, "--yes"], ["ledger", "rows", "--trace", STRAY],
    ["accounts", "credit", "acme", STRAY], ["accounts", "change", "acme", "--requests-per-min", STRAY],
    ["accounts", "show", STRAY], ["keys", "create", "acme", "--name", "x", "--scope", STRAY],
    ["keys", "create", "acme", "--name", "x", f"--{STRAY}"], ["incidents", "open", "t", "--severity", STRAY],
    ["feedback", STRAY, "1"], ["analytics", "usage", "--group-by", STRAY], ["store", "check", STRAY],
    ["store", "check", "--store", f"sqlit://{STRAY}"], [STRAY],
]  # fmt: skip


@pytest.mark.parametrize("argv", PLACES, ids=lambda argv: " ".join(argv).replace(STRAY, "KEY"))
def test_a_key_in_a_wrong_argument_is_not_printed(argv: list[str], capsys: Capture) -> None:
    for more in ([], ["--json"]):
        with suppress(SystemExit):
            main([*argv, *more])
        out, err = capsys.readouterr()
        assert "Canary" not in out + err
