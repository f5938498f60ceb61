"""The deployments of the examples: what they configure is accepted, and their parts fit together."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from routewright.cli import main
from routewright.serve.config import OTHERS, VARIABLES, ServeFile
from routewright.server.admin import PROBES

PLACE = Path(__file__).parent.parent / "examples" / "deploy"
COMPOSE: Any = yaml.safe_load((PLACE / "compose.yaml").read_text("utf-8"))
MANIFESTS: list[Any] = [*yaml.safe_load_all((PLACE / "kubernetes.yaml").read_text("utf-8"))]
BY_KIND = {each["kind"]: each for each in MANIFESTS}
POD = BY_KIND["Deployment"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
CONFIG = BY_KIND["ConfigMap"]["data"]["serve.toml"]
_BUILD = COMPOSE["services"]["store"]["build"]
CONTEXT = (PLACE / _BUILD["context"]).resolve()
DOCKERFILE = (CONTEXT / _BUILD["dockerfile"]).read_text("utf-8")
IMAGE_ENV = {
    name: value
    for line in re.findall(r"^ENV\s+(.+)$", DOCKERFILE, re.MULTILINE)
    for name, _, value in (word.partition("=") for word in shlex.split(line))
}
NEEDED = {"PGPASSWORD", "REDIS_PASSWORD", "OPENAI_API_KEY"}

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _with_a_secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ROUTEWRIGHT_SECRET", "0123456789abcdef" * 4)
    monkeypatch.chdir(tmp_path)
    for name, value in IMAGE_ENV.items():
        monkeypatch.setenv(name, value)


def test_kubernetes_runs_a_configuration_valid_for_serve(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = next(each for each in CONTAINER["volumeMounts"] if each["name"] == "config")
    command, flag, path = CONTAINER["args"]
    assert (command, flag, Path(path).parent) == ("serve", "--config", Path(mount["mountPath"]))
    assert [*BY_KIND["ConfigMap"]["data"]] == [Path(path).name]
    assert not {f"ROUTEWRIGHT_{key.upper()}" for key in tomllib.loads(CONFIG)} & {*IMAGE_ENV}, "the image's goes before"
    for each in CONTAINER["env"]:
        monkeypatch.setenv(each["name"], each["value"])
    (tmp_path / "serve.toml").write_text(CONFIG)
    assert main([command, "--check", flag, "serve.toml"]) == 0
    out = capsys.readouterr().out
    assert "http://0.0.0.0:8080" in out
    assert "postgresql://app@postgres.internal/routewright" in out


def test_probes_ask_served_addresses() -> None:
    config = tomllib.loads(CONFIG)
    assert config["health"] is True
    ((port,),) = [[each["containerPort"] for each in CONTAINER["ports"]]]
    assert port == config.get("port", ServeFile().port)
    asked = {CONTAINER[f"{kind}Probe"]["httpGet"]["path"] for kind in ("startup", "liveness", "readiness")}
    assert asked == {*PROBES}
    names = {CONTAINER[f"{kind}Probe"]["httpGet"]["port"] for kind in ("startup", "liveness", "readiness")}
    assert names | {BY_KIND["Service"]["spec"]["ports"][0]["targetPort"]} == {CONTAINER["ports"][0]["name"]}


def test_its_parts_select_the_same_pods() -> None:
    labels = BY_KIND["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert BY_KIND["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert BY_KIND["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    assert BY_KIND["Service"]["spec"]["selector"] == labels


def test_its_numbers_are_consistent() -> None:
    config, deployment = tomllib.loads(CONFIG), BY_KIND["Deployment"]["spec"]
    replicas, rolling = deployment["replicas"], deployment["strategy"]["rollingUpdate"]
    assert config["processes"] == (replicas + rolling["maxSurge"]) * config["workers"]
    assert BY_KIND["PodDisruptionBudget"]["spec"]["minAvailable"] < replicas
    pause = float(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1])
    assert POD["terminationGracePeriodSeconds"] > pause + ServeFile().graceful_timeout_s


def test_secrets_are_referenced_and_never_written() -> None:
    (source,) = CONTAINER["envFrom"]
    text = (PLACE / "kubernetes.yaml").read_text("utf-8")
    assert f"create secret generic {source['secretRef']['name']} " in text
    named = {*re.findall(r"--from-literal=(\w+)=", text)}
    assert named == NEEDED | {"ROUTEWRIGHT_SECRET"}
    assert named - NEEDED <= {*OTHERS, *VARIABLES}
    assert "Secret" not in BY_KIND
    assert not re.search(r"//\w+:\w+@", text)


def test_compose_serves_what_it_starts(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    services = COMPOSE["services"]
    server, maker = services["routewright"], services["store"]
    store = server["environment"]["ROUTEWRIGHT_STORE"]
    monkeypatch.setenv("ROUTEWRIGHT_STORE", store)
    assert main([server["command"][0], "--check", *server["command"][1:]]) == 0
    assert "postgresql://postgres@postgres/postgres" in capsys.readouterr().out
    for host in re.findall(r"\w+://(?:\w+@)?(\w+)[:/]", " ".join([store, *server["command"]])):
        assert host in services
    assert maker["environment"] == server["environment"]
    steps = [shlex.split(step) for step in maker["command"][0].split(" && ")]
    assert steps == [["routewright", "store", "create", "$$ROUTEWRIGHT_STORE"], ["routewright", "store", "upgrade"]]


def test_compose_builds_the_image_of_the_container_example() -> None:
    assert (CONTEXT / _BUILD["dockerfile"]).parent == CONTEXT / "examples" / "container"
    assert COMPOSE["services"]["store"]["image"] == COMPOSE["services"]["routewright"]["image"]
    (extras,) = {*re.findall(r"\[([\w,]+)\]\"", DOCKERFILE)}
    assert {"postgres", "redis", "server"} <= {*extras.split(",")}
