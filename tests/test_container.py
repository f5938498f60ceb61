"""The container of the examples: what its files say is true, and where there is a builder it is built and run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
import tomllib
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest
import yaml

from routewright.cli import main
from routewright.cli.serve import FLAGS
from routewright.serve.config import ServeFile
from routewright.server.admin import PROBES

ROOT = Path(__file__).parent.parent
PLACE = ROOT / "examples" / "container"
DOCKERFILE = (PLACE / "Dockerfile").read_text("utf-8").replace("\\\n", "")
COMPOSE: Any = yaml.safe_load((PLACE / "compose.yaml").read_text("utf-8"))
IMAGE = "routewright-test"


def said(instruction: str) -> list[str]:
    return re.findall(rf"^{instruction}\s+(.+)$", DOCKERFILE, re.MULTILINE)


COMMAND: list[str] = json.loads(said("CMD")[-1])


def test_its_command_is_valid_for_serve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve", "--help"])
    assert ended.value.code == 0
    help_text = capsys.readouterr().out
    flags = [word for word in COMMAND if word.startswith("--")]
    assert {*flags} <= {*FLAGS.values()}
    assert all(flag in help_text for flag in flags)
    monkeypatch.setenv("ROUTEWRIGHT_STORE", str(tmp_path / "routewright.db"))
    assert main([*COMMAND, "--check"]) == 0
    assert "http://0.0.0.0:8080" in capsys.readouterr().out


def test_its_health_check_asks_a_served_address() -> None:
    (port, path) = re.findall(r"http://127\.0\.0\.1:(\d+)(/[a-z]+)", said("HEALTHCHECK")[0])[0]
    assert path in PROBES
    assert "--health" in COMMAND
    assert int(port) == ServeFile().port
    assert said("EXPOSE") == [port]


def test_it_is_built_from_the_clone_with_existing_extras() -> None:
    copied = [word for line in said("COPY") for word in line.split()[:-1]]
    assert copied
    assert all((ROOT / each).exists() for each in copied)
    ignored = (PLACE / "Dockerfile.dockerignore").read_text("utf-8").split()
    assert {f"!{each}" for each in copied} <= {*ignored}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    (asked,) = {*re.findall(r"\[([\w,]+)\]\"", DOCKERFILE)}
    assert {"server", "cli"} <= {*asked.split(",")} <= {*extras}  # cli: accounts are managed inside it


def test_it_does_not_run_as_root_and_keeps_its_store_in_a_volume() -> None:
    assert said("USER") == ["10001"]
    (store,) = (line.partition("=")[2] for line in said("ENV") if line.startswith("ROUTEWRIGHT_STORE="))
    assert Path(store).parent == Path(said("VOLUME")[0]) == Path(said("WORKDIR")[-1])


def test_the_compose_file_builds_it_and_says_the_same() -> None:
    service = COMPOSE["services"]["routewright"]
    build = service["build"]
    context = (PLACE / build["context"]).resolve()
    assert context == ROOT
    assert context / build["dockerfile"] == PLACE / "Dockerfile"
    assert service["ports"] == [f"127.0.0.1:{ServeFile().port}:{said('EXPOSE')[0]}"]
    assert [mount.partition(":")[2] for mount in service["volumes"]] == said("VOLUME")
    assert {mount.partition(":")[0] for each in COMPOSE["services"].values() for mount in each["volumes"]} == {
        *COMPOSE["volumes"]
    }
    assert float(service["stop_grace_period"].removesuffix("s")) > ServeFile().graceful_timeout_s


def docker(*arguments: str) -> str:
    done = subprocess.run(["docker", *arguments], cwd=ROOT, capture_output=True, text=True, check=False, timeout=550)
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout.strip()


def has_builder() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True, check=False, timeout=20).returncode == 0


@pytest.mark.timeout(600)
def test_it_is_built_becomes_healthy_and_answers() -> None:
    if not has_builder():
        pytest.skip("the container is not built: 'docker info' finds no builder")
    docker("build", "-f", "examples/container/Dockerfile", "-t", IMAGE, ".")
    container = docker("run", "-d", "--rm", "-p", "127.0.0.1::8080", "--read-only", "--tmpfs", "/tmp", IMAGE)
    try:
        until = time.monotonic() + 60
        while docker("inspect", "-f", "{{.State.Health.Status}}", container) != "healthy":
            assert time.monotonic() < until, docker("logs", container)
        assert docker("exec", container, "id", "-u") == "10001"
        key = re.findall(r"\bsk_test_\S+", docker("logs", container))[0]
        place = docker("port", container, "8080").splitlines()[0]
        body = json.dumps({"messages": [{"role": "user", "content": "hi"}]}).encode()
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        with urlopen(Request(f"http://{place}/v1/route", body, headers), timeout=20) as answer:
            assert json.loads(answer.read())["output"].startswith("This is a canned answer")
    finally:
        docker("stop", container)
