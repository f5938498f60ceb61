"""``routewright status``: what is wrong, by a store and by a running server."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from socket import create_server
from threading import Thread
from typing import Any

import anyio
import pytest

from routewright import Console, ProviderFault, Router, RouterError, SqliteStorage
from routewright.cli import main
from routewright.cli.status import MOST_BYTES
from routewright.server import create_admin
from routewright.testing import ScriptedProvider
from routewright.wire import Delta, Finish, UpstreamCall, Usage
from tests.engine.scripted_router import GOOD, SPARE, plain, said
from tests.server.uvicorn_server import served

Capture = pytest.CaptureFixture[str]


def providers(*, spare_fails: bool = False) -> list[ScriptedProvider]:
    def spare(call: UpstreamCall) -> Any:
        return ProviderFault("server") if spare_fails else said(Delta("Blue."), Usage(10, 5), Finish("stop"))

    bad = ScriptedProvider(lambda call: ProviderFault("auth", status=401), models=[GOOD])
    return [bad, ScriptedProvider(spare, models=[SPARE])]


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("ROUTEWRIGHT_STORE", raising=False)
    return tmp_path / "traces.db"


def status(capsys: Capture, *argv: str) -> tuple[int, Any]:
    code = main(["status", *argv, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_store_shows_what_all_processes_wrote(path: Path, capsys: Capture) -> None:
    async def calls() -> None:
        storage = SqliteStorage(path)
        await Console(storage).create_account("acme", plan="team")
        async with Router(providers=providers(), storage=storage) as router:
            for _ in range(3):
                await plain(router, fallback={"maxRetries": 0})
        async with Router(providers=providers(spare_fails=True), storage=SqliteStorage(path)) as router:
            with pytest.raises(RouterError):
                await plain(router, fallback={"maxRetries": 0})

    anyio.run(calls)
    code, body = status(capsys, "--store", str(path))
    store = body["store"]
    assert (code, body["server"], store["kind"], store["accounts"]) == (0, None, "SqliteStorage", 1)
    assert store["database_bytes"] >= path.stat().st_size
    assert store["disk_free_bytes"] > 0
    assert (store["fallbacks"], store["passed_by"]) == ({"auth": 1}, {GOOD.id: 2})
    assert (store["failed"], store["deliveries"], store["reserved_usd"]) == ({"router.upstream_failed": 1}, {}, 0)
    assert main(["status", "--store", str(path)]) == 0
    shown = capsys.readouterr().out
    assert f"passed by {GOOD.id}" in shown
    assert f"2 calls today went past {GOOD.id}: its key is refused or its circuit was open; see the log, or" in shown
    assert "failed router.upstream_failed" in shown


def test_a_server_shows_its_problems(capsys: Capture, path: Path) -> None:
    router = Router(providers=providers())
    admin = create_admin(router)
    with served(admin) as url:
        assert status(capsys, "--url", url)[0] == 0
        assert main(["status", "--url", url]) == 0
        assert "nothing is wrong" in capsys.readouterr().out
        router.blocking.route("hi", goal="quality", fallback={"maxRetries": 0})
        code, body = status(capsys, "--url", f"{url}/")
        assert (code, body["store"], body["server"]["rescued"]) == (1, None, {"good": {"auth": 1}})
        assert main(["status", "--url", url]) == 1
        assert "good: the vendor refused its key" in capsys.readouterr().out
    router.blocking.close()


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH-2.0-OpenSSH_9.6"),
        (b"HTTP/1.1 200 OK\r\n\r\nhello", "JSON is malformed"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b" " * (MOST_BYTES + 1) + b"{}", "Input data was truncated"),
    ],
)
def test_an_answer_that_is_no_status_is_named(answer: bytes, reason: str, capsys: Capture) -> None:
    def serve() -> None:
        connection = listener.accept()[0]
        with connection, suppress(OSError):  # the client stops reading
            connection.recv(65_536)
            connection.sendall(answer)

    with create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert main(["status", "--url", url]) > 1
        thread.join()
    assert f"no status at {url}: " in (shown := capsys.readouterr().err)
    assert reason in shown


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--url", "127.0.0.1:1"], "--url: is no http address"),
        (["--url", "http://127.0.0.1:1"], "no status at http://127.0.0.1:1"),
        ([], "--store: is missing"),
    ],
)
def test_what_is_not_there_is_named(argv: list[str], message: str, path: Path, capsys: Capture) -> None:
    assert main(["status", *argv]) > 1
    assert message in capsys.readouterr().err
