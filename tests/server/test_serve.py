"""``routewright serve`` as a user runs it: first start, shutdown, reloads and workers."""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import pytest

from routewright import Console
from routewright.cli import main
from routewright.testing.faulty.server import UNTRUSTED
from tests.upstream import Answer, Upstream

from .serve_process import HELLO, Server, Vendor, free_ports, serving

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks at processes as Linux shows them")

STREAM: dict[str, Any] = {"stream": True, "models": ["openai/gpt-5.4"]}


def ask_as_printed(page: str) -> str:
    """The answer to the command on the page."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    (line,) = [line for line in page.splitlines() if line.startswith("curl ")]
    return subprocess.run([*shlex.split(line), "-sS"], capture_output=True, text=True, check=True, timeout=30).stdout


def test_the_first_start_shows_keys_once_and_a_command_that_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(tmp_path, "--log-level", "debug", OPENAI_API_KEY="sk-CANARY") as server:
        assert set(server.keys) == {"live", "test"}
        assert "ITS PLAN IS 'unlimited'" in server.page
        assert "OPENAI_API_KEY" in server.page
        assert "CANARY" not in server.page + server.log
        assert "canned answer" in ask_as_printed(server.page)
        assert server.ask(server.keys["test"]).status == 200
        server.signal(signal.SIGTERM)
        assert server.ended() == 0
        assert not any(key in server.log for key in server.keys.values())
        (looks,) = re.findall("^routewright (traces ls .+)$", server.page, re.MULTILINE)
    assert main([*shlex.split(looks)[:-1], str(tmp_path / "routewright.db")]) == 0
    assert capsys.readouterr().out.count("sandbox") == 2
    account = Console(f"sqlite:///{tmp_path}/routewright.db").blocking.account("main")
    assert account.plan == "unlimited"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_first_start_that_cannot_show_its_keys_fails(tmp_path: Path) -> None:
    (tmp_path / "out.txt").symlink_to("/dev/full")
    with serving(tmp_path) as server:
        assert server.ended() == 1
        assert "cannot write the output: No space left on device" in server.log


def test_a_running_stream_finishes_before_the_server_ends(tmp_path: Path) -> None:
    with Vendor() as vendor, serving(tmp_path, **vendor.variables) as server:
        port = server.port
        response = server.ask(server.keys["live"], **STREAM)
        first = response.readline()
        server.signal(signal.SIGTERM)
        server.until(lambda: "shutting down" in server.log)
        server.until(lambda: is_refused(port))
        assert server.process.poll() is None
        vendor.gate.open()
        rest = response.read().decode()
        assert "First last" in (first.decode() + rest)
        assert "event: route.completed" in rest
        assert server.ended() == 0
    assert "Traceback" not in server.log


def test_requests_that_outlast_the_grace_period_get_an_error(tmp_path: Path) -> None:
    with Vendor() as vendor, serving(tmp_path, "--graceful-timeout", "0.5", **vendor.variables) as server:
        streamed = server.ask(server.keys["live"], **STREAM)
        plain: list[tuple[int, bytes]] = []

        def ask() -> None:
            response = server.ask(server.keys["live"], models=["openai/gpt-5.4"])
            plain.append((response.status, response.read()))

        vendor.gate.reached.clear()
        thread = threading.Thread(target=ask)
        thread.start()
        assert vendor.gate.reached.wait(20)
        server.signal(signal.SIGINT)
        *_, last = streamed.read().decode().strip().split("\n\n")
        assert last.startswith("event: error")
        assert "the server was stopped" in last
        thread.join(20)
        ((status, body),) = plain
        assert (status, json.loads(body)["error"]["code"]) == (500, "internal_error")
        assert server.ended() == 0
    assert "Traceback" not in server.log


@pytest.mark.full
def test_a_server_stopped_during_the_start_logs_no_traceback(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.until(lambda: server.children)
        server.signal(signal.SIGTERM)
        assert server.ended() == 0
        assert "Traceback" not in server.log


def test_a_reload_replaces_all_workers_and_refuses_no_request(tmp_path: Path, full: bool) -> None:
    file = tmp_path / "catalogue.toml"
    file.write_text("")
    with serving(tmp_path, "--workers", "2", "--catalogue", file.name) as server:
        if full:
            server.until(lambda: server.children)
            server.signal(signal.SIGHUP)  # during the start: it is done afterwards
        key, ended = server.keys["test"], 2 if full else 0
        server.until(lambda: server.log.count("Terminated child process") == ended and len(server.children) == 2)
        before = server.children
        with Load(server, key) as load:
            file.write_text("models = 'many'\n")
            server.signal(signal.SIGHUP)
            server.until(lambda: "aborting the restart" in server.log)
            assert f"this worker cannot serve: {file.name}: models" in server.log
            load.for_more(50)
            assert server.children == before
            file.write_text("")
            server.signal(signal.SIGHUP)
            server.until(lambda: len(server.children) == 2 and not set(before) & set(server.children))
            load.for_more(50)
        assert load.failed == []
        server.signal(signal.SIGTERM)
        assert server.ended() == 0


@pytest.mark.full
def test_a_worker_that_cannot_start_ends_the_server(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", "2") as server:
        assert answers(server, server.keys["test"])
        server.until(lambda: server.log.count("keeping traces") == 2)  # else the second one creates the file anew
        for file in tmp_path.glob("routewright.db*"):
            file.unlink()
        os.kill(server.children[0], signal.SIGKILL)
        assert server.ended() == 1
        assert "was removed while it was in use" in server.log


def test_workers_share_one_store_and_a_dead_one_is_replaced(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", "2") as server:
        assert answers(server, server.keys["test"])
        server.until(lambda: len(server.children) == 2)
        before = server.children
        status = Path(f"/proc/{server.process.pid}/status").read_text()
        assert int(status.partition("VmRSS:")[2].split()[0]) < 45_000, "kB that a supervisor takes, without the library"
        console = Console(f"sqlite:///{tmp_path}/routewright.db").blocking
        console.create_account("acme", plan="free")
        key = console.create_key("acme", name="k", environment="sandbox").secret.reveal()
        statuses = [server.ask(key).status for _ in range(65)]
        assert statuses.count(200) == 60
        assert statuses.count(429) == 5
        os.kill(before[0], signal.SIGKILL)
        server.until(lambda: len(server.children) == 2 and before[0] not in server.children)
        assert server.ask(server.keys["test"]).status == 200
        server.signal(signal.SIGTERM)  # the new one may still be starting
        assert server.ended() == 0
        assert "Traceback" not in server.log


def test_workers_end_with_their_supervisor(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        assert answers(server, server.keys["test"])
        (worker,) = server.children
        server.process.kill()
        server.process.wait(10)
        ends = threading.Event()
        for _ in range(200):
            if not Path(f"/proc/{worker}").exists():
                return
            ends.wait(0.05)
        raise AssertionError("the worker goes on")


def test_tls_is_1_2_or_higher_and_speaks_http_1_1(tmp_path: Path) -> None:
    (tmp_path / "both.pem").write_text(pem := UNTRUSTED.read_text())
    with serving(tmp_path, "--tls-cert", "both.pem") as server:
        assert "https://127.0.0.1:" in server.page
        context = ssl.create_default_context(cadata=pem[pem.index("-----BEGIN CERT") :])
        context.check_hostname = False
        context.set_alpn_protocols(["h2", "http/1.1"])
        assert server.ask(server.keys["test"], server.connect(context)).status == 200
        with socket.create_connection(("127.0.0.1", server.port)) as plain, context.wrap_socket(plain) as tls:
            assert tls.selected_alpn_protocol() == "http/1.1"
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with (
            socket.create_connection(("127.0.0.1", server.port)) as plain,
            pytest.raises((ssl.SSLError, ConnectionError)),
            old.wrap_socket(plain),
        ):
            pass


def answers(server: Server, key: str) -> bool:
    """Whether it does, in a moment."""
    for _ in range(50):
        try:
            return server.ask(key).status == 200
        except (OSError, HTTPException):
            threading.Event().wait(0.1)
    return False


PAGE = "https://app.example.com"


@pytest.fixture(scope="module")
def equipped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with two workers and everything that listens besides the API."""
    options = {"--workers": "2", "--admin-port": str(free_ports(1)), "--root-path": "/llm", "--cors-origin": PAGE}
    folder, more = tmp_path_factory.mktemp("equipped"), [word for option in options.items() for word in option]
    with serving(folder, "--health", "--cors-origin", "http://localhost:5173", *more) as server:
        yield server


def admin_port(server: Server) -> int:
    found = re.search(r"without a key: http://127\.0\.0\.1:(\d+)", server.page)
    assert found is not None, server.page
    return int(found[1])


def test_a_path_prefix_may_be_kept_or_removed_by_the_proxy(equipped: Server) -> None:
    headers = {"Authorization": f"Bearer {equipped.keys['test']}"}
    for path in ("/v1/models", "/llm/v1/models"):
        connection = equipped.connect()
        connection.request("GET", path, headers=headers)
        assert connection.getresponse().status == 200


def test_one_port_answers_the_administrator_with_the_metrics_of_all_workers(equipped: Server) -> None:
    for _ in range(8):
        assert equipped.ask(equipped.keys["test"], path="/v1/decide").status == 200
    count = b'routewright_http_requests_total{endpoint="/v1/decide",method="POST",status="200"} 8.0'
    port = admin_port(equipped)
    for _ in range(8):
        assert got(port, "/healthz") == got(port, "/readyz") == b'{"status":"ok"}'
        equipped.until(lambda: count in got(port, "/metrics"))


def test_the_public_port_can_answer_probes_and_web_pages(equipped: Server) -> None:
    assert got(equipped.port, "/healthz") == got(equipped.port, "/readyz") == b'{"status":"ok"}'
    connection = equipped.connect()
    asks = {"Origin": PAGE, "Access-Control-Request-Method": "POST"}
    connection.request("OPTIONS", "/v1/route", headers=asks)
    answer = connection.getresponse()
    assert (answer.status, answer.getheader("access-control-allow-origin")) == (200, PAGE)


def test_each_request_is_a_line_of_json_on_standard_output(equipped: Server) -> None:
    key = equipped.keys["test"]
    answer = equipped.ask(key, metadata={"secret": "CANARY"})
    request_id = answer.getheader("x-request-id") or ""
    equipped.until(lambda: request_id in equipped.out.read_text("utf-8"))
    (line,) = [line for line in equipped.out.read_text("utf-8").splitlines() if request_id in line]
    told = json.loads(line)
    assert (told["endpoint"], told["status"], told["account"]) == ("/v1/route", 200, "main")
    assert told["client"] == "127.0.0.1"
    assert "CANARY" not in line
    assert key not in line


def test_a_client_that_speaks_no_http_is_logged_and_counted(equipped: Server) -> None:
    with socket.create_connection(("127.0.0.1", equipped.port), timeout=30) as client:
        client.sendall(b"EHLO there\r\n\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 400 ")
    equipped.until(lambda: '"malformed_request"' in equipped.out.read_text("utf-8"))
    count = b'routewright_http_refusals_total{reason="malformed",status="400"} 1.0'
    equipped.until(lambda: count in got(admin_port(equipped), "/metrics"))


def test_a_taken_port_creates_no_store(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = Server(tmp_path, "--port", str(port))
        assert server.ended() == 2
        assert f"--port: cannot listen at 127.0.0.1 port {port}" in server.log
    assert list(tmp_path.glob("*.db*")) == []


def got(port: int, path: str) -> bytes:
    connection = HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    finally:
        connection.close()


def is_refused(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return True
    return False


class Load:
    """Two clients that ask all the time: one keeps its connection, one makes a new one for each request."""

    def __init__(self, server: Server, key: str) -> None:
        self.failed: list[str] = []
        self.count = 0
        self._more = threading.Condition()
        self._enough = threading.Event()
        self._port, self._key = server.port, key
        self._threads = [threading.Thread(target=self._ask, args=(keeps,)) for keeps in (True, False)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        self.for_more(20)
        return self

    def __exit__(self, *_: object) -> None:
        self._enough.set()
        for thread in self._threads:
            thread.join(30)

    def for_more(self, requests: int) -> None:
        """Wait until so many more were answered."""
        with self._more:
            goal = self.count + requests
            assert self._more.wait_for(lambda: self.count >= goal or self.failed, 30)

    def _ask(self, keeps: bool) -> None:
        connection = HTTPConnection("127.0.0.1", self._port, timeout=30)
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"}
        while not self._enough.wait(0.02):
            try:
                connection.request("POST", "/v1/route", json.dumps(HELLO), headers)
                response = connection.getresponse()
                response.read()
                if response.status != 200:
                    self.failed.append(str(response.status))
            except (OSError, HTTPException) as error:
                self.failed.append(repr(error))
                connection.close()
            if not keeps:
                connection.close()
            with self._more:
                self.count += 1
                self._more.notify_all()
        connection.close()


def test_spans_are_exported_by_otlp_within_the_callers_trace(tmp_path: Path) -> None:
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    with Upstream(lambda request: Answer()) as collector:
        variables = {"ROUTEWRIGHT_TELEMETRY_OTEL": "on", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.root}
        with serving(tmp_path, **variables) as server:
            connection = server.connect()
            headers = {
                "Authorization": f"Bearer {server.keys['test']}",
                "Content-Type": "application/json",
                "traceparent": f"00-{trace_id}-b7ad6b7169203331-01",
            }
            connection.request("POST", "/v1/route", json.dumps(HELLO), headers)
            assert connection.getresponse().status == 200
            server.signal(signal.SIGTERM)
            assert server.ended() == 0
    came: dict[str, bytes] = {}
    for request in collector.requests:
        packed = request.headers.get("content-encoding") == "gzip"
        came[request.path] = came.get(request.path, b"") + (gzip.decompress(request.raw) if packed else request.raw)
    spans, figures = came["/v1/traces"], came["/v1/metrics"]
    assert bytes.fromhex(trace_id) in spans
    for name in (b"routewright.route", b"gen_ai.request.model", b"gen_ai.provider.name", b"service.name"):
        assert name in spans
    assert b"gen_ai.client.token.usage" in figures
    assert b"Hello" not in spans
