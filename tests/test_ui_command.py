"""The command ``ui``: a page on a store, for the owner of the machine."""

from __future__ import annotations

import signal
import socket
import stat
from pathlib import Path

import pytest

from routewright import Console, SqliteStorage
from routewright.cli import main

from .ui.command import Command, running

pytestmark = pytest.mark.xdist_group("real_time")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    console = Console(SqliteStorage(tmp_path / "traces.db"))
    console.blocking.create_account("acme")
    console.blocking.close()
    return tmp_path / "traces.db"


def test_the_link_signs_the_owner_in_once_until_ctrl_c(store: Path) -> None:
    command = Command(store.parent)
    assert command.ask("GET", "/api/console.accounts")[0] == 401
    session = command.sign_in()
    assert session["writes"] is True
    assert session["operator"]
    assert [account["name"] for account in command.ask("GET", "/api/console.accounts")[1]] == ["acme"]
    assert command.ask("POST", "/api/console.create_account", {"name": "globex"})[0] == 200
    assert command.ask("POST", "/session", {"link": command.token})[0] == 401
    request = {"messages": [{"role": "user", "content": "Hello"}]}
    assert "event: route.completed" in command.ask("POST", "/api/try", {**request, "environment": "sandbox"})[1]
    live = str(command.ask("POST", "/api/try", {**request, "environment": "production"})[1])
    assert "router.no_candidates" in live  # without any key

    command.process.send_signal(signal.SIGINT)
    assert command.process.wait(10) == 0
    assert "Traceback" not in command.err.read_text("utf-8")
    console = Console(SqliteStorage(store))
    assert [account.name for account in console.blocking.accounts()] == ["acme", "globex"]
    console.blocking.close()

    opened = store.parent / "opened.txt"
    options = ("--read-only", "--no-browser", "--port", str(command.port))
    with running(store.parent, *options, BROWSER=f"touch {opened} %s") as later:
        later.cookie = command.cookie
        assert later.ask("GET", "/session")[0] == 401
        assert later.ask("POST", "/session", {"link": command.token})[0] == 401
        assert later.sign_in()["writes"] is False
        assert later.ask("POST", "/api/console.create_account", {"name": "initech"})[0] == 403
        assert not opened.exists()


def test_a_database_is_shown_like_a_file(postgres: str, tmp_path: Path) -> None:
    with running(tmp_path, "--store", postgres) as command:  # without the root secret, which only keys need
        command.sign_in()
        assert command.ask("POST", "/api/console.create_account", {"name": "acme"})[0] == 200
        assert [account["name"] for account in command.ask("GET", "/api/console.accounts")[1]] == ["acme"]
        status, answer = command.ask("POST", "/api/console.create_key", {"account": "acme", "name": "website"})
        assert (status, "sk_" in str(answer)) == (500, False)
        assert command.ask("GET", '/api/traces.usage?{"group_by":"account"}'.replace('"', "%22"))[0] == 200


def test_only_this_machine_and_the_browser_of_the_owner_get_the_link(store: Path) -> None:
    opened = store.parent / "opened.txt"
    browser = store.parent / "browser.sh"
    browser.write_text(f'#!/bin/sh\necho "$@" > {opened}.part\nmv {opened}.part {opened}\n')
    browser.chmod(0o755)
    with running(store.parent, BROWSER=str(browser)) as command:
        command.until(opened.exists)
        address = opened.read_text().strip()
        assert command.token not in address  # which every user of the machine sees in the list of processes
        file = Path(address.removeprefix("file://"))
        assert f"url=http://127.0.0.1:{command.port}/#link={command.token}" in file.read_text()
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        assert command.token.encode() not in Path(f"/proc/{command.process.pid}/cmdline").read_bytes()
        assert command.token not in command.err.read_text("utf-8")
        listening = Path("/proc/net/tcp").read_text().split()
        assert f"0100007F:{command.port:04X}" in listening
        assert f"00000000:{command.port:04X}" not in listening
    assert not file.exists()


def test_files_of_policies_models_and_answers_are_used(store: Path) -> None:
    folder = store.parent
    (folder / "policies.toml").write_text('[[policies]]\nname = "desk"\ngoal = "quality"\n')
    models = (
        '[[models]]\nid = "vllm/own"\nlike = "groq/openai/gpt-oss-20b"\nprices = { input_usd = 1, output_usd = 1 }\n'
    )
    (folder / "models.toml").write_text(models)
    options = ("--policies", "policies.toml", "--catalogue", "models.toml")
    with running(folder, *options) as command:
        command.sign_in()
        request = {"messages": [{"role": "user", "content": "Hello"}], "policy_id": "desk"}
        assert "desk@" in str(command.ask("POST", "/api/try", {**request, "environment": "sandbox"})[1])
        draft = {"policy": {"name": "own", "models": ["vllm/own"]}}
        assert command.ask("POST", "/api/policies.draft", draft)[0] == 200
        assert command.ask("POST", "/api/policies.check", {"name": "own"})[0] == 200
        assert command.ask("POST", "/api/policies.publish", {"name": "own"})[0] == 200
    assert main(["ui", "--store", str(store), "--cache", str(folder / "none.db")]) == 2
    assert main(["ui", "--store", str(store), "--policies", str(folder / "none.toml")]) == 2


def test_what_cannot_be_shown_is_refused_before_the_browser_opens(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ROUTEWRIGHT_STORE", raising=False)
    (tmp_path / "text.db").write_text("nothing of the kind" * 1000)
    refusals = {
        (): "--store: is missing",
        ("--store", str(tmp_path / "none.db")): "there is no store",
        ("--store", str(tmp_path / "text.db")): "text.db",
    }
    for options, text in refusals.items():
        assert main(["ui", *options]) in (1, 2)
        out, err = capsys.readouterr()
        assert text in err
        assert out == ""
    for port in ("70000", "-1", "x"):
        with pytest.raises(SystemExit):
            main(["ui", "--store", str(store), f"--port={port}"])
        assert f"'{port}' is not a port, 0 to 65535" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["ui", "--store", str(store), "--port", str(taken.getsockname()[1])]) == 2
    assert "Address already in use" in capsys.readouterr().err


def test_a_missing_extra_is_one_sentence(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("routewright.cli.serve.find_spec", lambda name: None)
    assert main(["ui", "--store", str(store)]) == 2
    assert capsys.readouterr().err.endswith(
        "'routewright ui' needs uvicorn and httptools, which are not installed; "
        "run: pip install 'routewright[server]'\n"
    )
