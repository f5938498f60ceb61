"""Configuration of ``routewright serve``: flag over environment over file over default; errors name the source."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from routewright import Console, MemoryStorage
from routewright.backends.providers.environment import providers_from_environment
from routewright.cli import main
from routewright.cli.serve import FLAGS, started_page
from routewright.serve import prepare
from routewright.serve.config import VARIABLES, ServeFile, Sources, keys_of
from routewright.serve.parts import router_of, settings_of
from routewright.serve.plan import Plan, Setup, Tls
from routewright.serve.prepare import plan_of
from routewright.testing.faulty.server import UNTRUSTED

from .tls_keys import LOCKED, OTHER, PASSWORD

pytestmark = pytest.mark.anyio

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
Refused = Callable[..., str]


@pytest.fixture(autouse=True)
def _alone(monkeypatch: Patch, noon: None) -> None:
    for name in list(os.environ):
        if name.startswith("ROUTEWRIGHT_"):
            monkeypatch.delenv(name)


@pytest.fixture
def refused(capsys: Capture) -> Refused:
    """What a check says that fails, and nothing but that."""

    def check(*options: str) -> str:
        capsys.readouterr()
        assert main(["serve", "--check", *options]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        return err.removeprefix("routewright: ").rstrip("\n")

    return check


def planned(config: str | None = None, environ: dict[str, str] | None = None, **flags: object) -> Plan:
    return plan_of(Sources(flags, FLAGS, environ or {}, config))


def test_flags_win_over_variables_over_the_file_over_defaults() -> None:
    Path("serve.toml").write_text("port = 1\nworkers = 2\nhost = '127.0.0.3'\n")
    environ = {"ROUTEWRIGHT_PORT": "4", "ROUTEWRIGHT_WORKERS": "5", "ROUTEWRIGHT_CONFIG": "serve.toml"}
    plan = planned(environ=environ, port=7)
    assert (plan.address.port, plan.workers, plan.address.host) == (7, 5, "127.0.0.3")
    assert plan.graceful_timeout_s == 30
    assert planned("serve.toml").address.port == 1


def test_every_key_can_be_set_by_a_variable() -> None:
    environ = {
        "ROUTEWRIGHT_INSECURE_BIND": "yes",
        "ROUTEWRIGHT_HOST": "0.0.0.0",
        "ROUTEWRIGHT_TRUSTED_PROXIES": "10.0.0.1, 10.0.0.2",
        "ROUTEWRIGHT_HTTP_BODY_S": "2.5",
        "ROUTEWRIGHT_CONNECTIONS_HEADERS": "50",
        "ROUTEWRIGHT_SETTINGS_DURABILITY": "committed",
        "ROUTEWRIGHT_SETTINGS_STALE_AFTER_DAYS": "never",
        "ROUTEWRIGHT_SETTINGS_ROLLUP_KEYS": "team,app",
        "ROUTEWRIGHT_SETTINGS_RETENTION_PRODUCTION_DAYS": "forever",
        "ROUTEWRIGHT_SETTINGS_RETENTION_SANDBOX_DAYS": "2",
        "ROUTEWRIGHT_SETTINGS_CAPTURE_PROMPTS": "false",
        "ROUTEWRIGHT_SETTINGS_EXECUTION_OPEN_AFTER": "9",
    }
    plan = planned(environ=environ)
    settings = settings_of(plan)
    assert plan.trusted_proxies == ("10.0.0.1", "10.0.0.2")
    assert (plan.http["body_s"], plan.connections["headers"]) == (2.5, 50)
    assert (settings.durability, settings.stale_after_days, settings.execution.open_after) == ("committed", None, 9)
    assert settings.rollup_keys == ("team", "app")
    assert settings.retention is not None
    assert (settings.retention.production_days, settings.retention.sandbox_days) == (None, 2)
    assert settings.capture is not None
    assert (settings.capture.prompts, settings.capture.answers) == (False, True)
    assert len(VARIABLES) == len(list(keys_of(ServeFile)))


def test_the_port_variable_of_kubernetes_is_ignored() -> None:
    assert planned(environ={"ROUTEWRIGHT_PORT": "tcp://10.0.0.1:80"}).address.port == 8080


def test_cors_origins_are_validated(refused: Refused) -> None:
    environ = {"ROUTEWRIGHT_CORS_ORIGINS": "https://a.example, https://b.example", "ROUTEWRIGHT_HEALTH": "yes"}
    plan = planned(environ=environ)
    assert (plan.cors_origins, plan.health) == (("https://a.example", "https://b.example"), True)
    said = refused("--cors-origin", "https://a.example/", "--store", "memory:")
    assert "--cors-origin: 'https://a.example/' is not an origin; write scheme and host" in said


def test_providers_of_the_environment_may_be_allowed_more(refused: Refused, monkeypatch: Patch) -> None:
    monkeypatch.setenv("VLLM_BASE_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-x")
    monkeypatch.setenv("ROUTEWRIGHT_FETCHES_URLS", "vllm")
    monkeypatch.setenv("ROUTEWRIGHT_CALLER_EXTRA", "vllm.structured_outputs.choice, openai.web_search_options")
    plan = planned(environ=dict(os.environ))
    providers: list[Any] = providers_from_environment(
        os.environ, fetches_urls=plan.fetches_urls, caller_extra=plan.caller_extra
    )
    leave = {each.name: (each.fetches_urls, "structured_outputs.choice" in each.caller_extra) for each in providers}
    assert leave == {"vllm": ("callers", True), "openai": ("callers", False)}
    router = router_of(plan, MemoryStorage())
    assert "web_search_options" in router.caller_extra("openai")
    router.blocking.close()
    monkeypatch.setenv("ROUTEWRIGHT_FETCHES_URLS", "llamacpp")
    said = "ROUTEWRIGHT_FETCHES_URLS: 'llamacpp' is not a provider of the environment; name one of openai, vllm"
    assert refused().startswith(said)
    monkeypatch.setenv("ROUTEWRIGHT_FETCHES_URLS", "vllm")
    monkeypatch.setenv("ROUTEWRIGHT_CALLER_EXTRA", "vllm")
    assert refused().startswith("ROUTEWRIGHT_CALLER_EXTRA: 'vllm' has no field; write vllm.FIELD")
    monkeypatch.setenv("ROUTEWRIGHT_CALLER_EXTRA", "choice")
    assert refused().endswith(
        "'choice' is not a provider of the environment; write the provider in front, as openai.choice"
    )
    monkeypatch.setenv("ROUTEWRIGHT_CALLER_EXTRA", "vllm.n_predict")
    assert "'n_predict' is set by the router" in refused()


def test_a_wrong_value_is_refused_by_its_source(refused: Refused, monkeypatch: Patch) -> None:
    Path("serve.toml").write_text("# mine\nport = 70_000\n\n[tls]\ncerts = 'x'\n")
    said = refused("--config", "serve.toml")
    assert "serve.toml: port: must be from 0 to 65535, got 70000" in said
    assert "serve.toml: tls.certs: unknown key; did you mean 'cert'" in said
    Path("serve.toml").write_text("[http]\nbody_bytes = -1\n")
    assert refused("--config", "serve.toml").startswith("serve.toml: http.body_bytes: is -1; take")
    monkeypatch.setenv("ROUTEWRIGHT_WORKERS", "many")
    assert refused() == "ROUTEWRIGHT_WORKERS: must be a whole number, got 'many'; correct the value"
    monkeypatch.setenv("ROUTEWRIGHT_WORKERS", "2")
    monkeypatch.setenv("ROUTEWRIGHT_CONNECTIONS_OPEN", "0")
    assert refused().startswith("ROUTEWRIGHT_CONNECTIONS_OPEN: is 0; take")
    monkeypatch.delenv("ROUTEWRIGHT_CONNECTIONS_OPEN")
    assert refused("--workers", "0") == "--workers: must be from 1 to 256, got 0; correct the value"
    assert "--root-path: must begin with a slash" in refused("--root-path", "llm/")


@pytest.mark.parametrize("proxy", ["*", "nginx", "10.0.0.1/8", "10.0.0.1:80"])
def test_trusted_proxies_are_addresses_or_networks(refused: Refused, monkeypatch: Patch, proxy: str) -> None:
    monkeypatch.setenv("ROUTEWRIGHT_TRUSTED_PROXIES", "::1,192.168.0.0/16")
    assert main(["serve", "--check"]) == 0
    monkeypatch.setenv("ROUTEWRIGHT_TRUSTED_PROXIES", f"127.0.0.1,{proxy}")
    said = refused()
    assert said.startswith("ROUTEWRIGHT_TRUSTED_PROXIES: must be an address, or a network as 10.0.0.0/8")


def test_a_misspelt_variable_is_warned_about_but_none_of_clients(capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setenv("ROUTEWRIGHT_KEY", "sk_test_1")
    assert main(["serve", "--check"]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setenv("ROUTEWRIGHT_WORKER", "2")
    assert main(["serve", "--check"]) == 0
    assert "ROUTEWRIGHT_WORKER is unknown and ignored; did you mean 'ROUTEWRIGHT_WORKERS'" in capsys.readouterr().err


def test_a_check_starts_and_creates_nothing(capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-CANARY")
    assert main(["serve", "--check", "--workers", "2", "--admin-port", "9100"]) == 0
    shown = capsys.readouterr().out
    assert "http://127.0.0.1:8080" in shown
    assert "routewright.db (will be created)" in shown
    assert "CANARY" not in shown
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.5", "example.com"])
def test_plain_http_beyond_loopback_needs_insecure_bind(refused: Refused, host: str) -> None:
    said = refused("--host", host)
    assert said.startswith(f"--host: is {host!r}, which other machines can reach")
    assert "--insecure-bind" in said
    assert main(["serve", "--check", "--host", host, "--insecure-bind"]) == 0


def test_an_in_memory_store_is_for_one_worker(refused: Refused) -> None:
    assert refused("--store", "memory:", "--workers", "2").startswith("--store: is memory:, which 2 workers")
    assert main(["serve", "--check", "--store", "memory:"]) == 0


def test_the_admin_port_must_be_another(refused: Refused) -> None:
    said = refused("--admin-port", "8080", "--workers", "3")
    assert said.startswith("--admin-port: is 8080, but that is the port for requests")
    assert main(["serve", "--check", "--admin-port", "8081", "--workers", "3"]) == 0


def test_the_page_needs_a_port_a_store_and_a_safe_way_to_it(refused: Refused, capsys: Capture) -> None:
    assert refused("--ui") == "--ui: needs a port of its own; set --admin-port, as 9000"
    beside = ("--ui", "--admin-port", "9100")
    assert refused(*beside, "--store", "memory:").startswith("--ui: needs a store that can hold keys of operators")
    reachable = (*beside, "--admin-host", "0.0.0.0")
    said = refused(*reachable)
    assert said.startswith("--admin-host: is '0.0.0.0', which other machines can reach, and there is no TLS")
    assert "--insecure-bind" in said
    assert main(["serve", "--check", *reachable, "--insecure-bind"]) == 0
    assert main(["serve", "--check", "--admin-port", "9100", "--admin-host", "0.0.0.0"]) == 0
    capsys.readouterr()
    assert main(["serve", "--check", *beside]) == 0
    assert "http://127.0.0.1:9100/ui/ for operators, with a key of theirs" in capsys.readouterr().out
    for name in ("https://ops.example.com", "ops.example.com:8443", "ops.example.com/ui"):
        Path("serve.toml").write_text(f'[admin]\nport = 9100\nui = true\nhosts = ["{name}"]\n')
        assert "must be a name alone, as ops.example.com" in refused("--config", "serve.toml")


def test_tls_files_are_checked_before_the_start(refused: Refused, monkeypatch: Patch) -> None:
    key, certificate = (f"-----BEGIN {each}" for each in UNTRUSTED.read_text().split("-----BEGIN ")[1:])
    Path("key.pem").write_text(key)
    Path("cert.pem").write_text(certificate)
    Path("other.pem").write_text(OTHER)
    Path("locked.pem").write_text(LOCKED)
    Path("text.pem").write_text("nothing of the kind\n")
    given = ("--tls-cert", "cert.pem", "--tls-key")
    assert main(["serve", "--check", *given, "key.pem", "--host", "0.0.0.0"]) == 0
    assert refused("--tls-cert", "none.pem").startswith("--tls-cert: none.pem cannot be read: No such file")
    assert refused("--tls-key", "key.pem") == "--tls-key: needs a certificate; set tls.cert, too"
    assert "has a private key that does not belong to the certificate" in refused(*given, "other.pem")
    assert refused("--tls-cert", "cert.pem").startswith("--tls-cert: cert.pem has no private key")
    assert refused(*given, "text.pem").startswith("--tls-key: text.pem has no private key")
    assert "has no certificate" in refused("--tls-cert", "text.pem", "--tls-key", "key.pem")
    assert refused(*given, "locked.pem").startswith(
        "tls.key_password: is not set, but the private key in locked.pem is"
    )
    monkeypatch.setenv("ROUTEWRIGHT_TLS_KEY_PASSWORD", "CANARY")
    said = refused(*given, "locked.pem")
    assert said == "ROUTEWRIGHT_TLS_KEY_PASSWORD: does not decrypt the private key in locked.pem; check it"
    monkeypatch.setenv("ROUTEWRIGHT_TLS_KEY_PASSWORD", PASSWORD)
    assert "does not belong to the certificate" in refused(*given, "locked.pem")


def test_passwords_are_never_shown(refused: Refused) -> None:
    Path("serve.toml").write_text("[tls]\ncert = 'c'\nkey_password = ['CANARY']\n")
    assert "CANARY" not in refused("--config", "serve.toml")
    assert "CANARY" not in repr(Tls("c", "k", "CANARY"))


DATABASE = "postgresql://app:CANARY@db.example/routewright"


def test_a_check_names_a_database_without_its_password(capsys: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setenv("ROUTEWRIGHT_SECRET", "0123456789abcdef" * 4)
    assert main(["serve", "--check", "--store", DATABASE]) == 0
    out = capsys.readouterr().out
    assert "\nstore    postgresql://app@db.example/routewright\n" in out
    assert "CANARY" not in out


def test_a_database_needs_the_secret_in_the_environment(refused: Refused) -> None:
    said = "is not set, but a store in PostgreSQL needs it: API keys depend on it"
    hint = "set the same on all machines ('openssl rand -hex 32')"
    assert refused("--store", DATABASE) == f"ROUTEWRIGHT_SECRET: {said}; {hint}"


def test_redis_urls_are_checked_before_the_start(capsys: Capture, refused: Refused) -> None:
    said = refused("--coordination", "redis://u:CANARY@host/x")
    assert said.startswith("--coordination: is not an address of Redis; write redis://")
    assert main(["serve", "--check", "--coordination", "redis://u:CANARY@host/1"]) == 0
    assert capsys.readouterr().out.count("redis://u@host/1") == 1


def test_policies_and_catalogue_are_checked_before_the_start(refused: Refused) -> None:
    Path("policies.toml").write_text("[[policies]]\nname = 'a'\ngoal = 'fast'\n")
    assert refused("--policies", "policies.toml").startswith("policies.toml: policies[0].goal")
    assert "none.toml: cannot be read" in refused("--policies", "none.toml")
    assert "none.toml: cannot be read" in refused("--catalogue", "none.toml")


async def test_two_first_starts_at_once_create_one_account() -> None:
    plan, made = planned(environment="sandbox"), list[Setup]()

    async def first_start() -> None:
        made.append(await prepare.set_up_store(plan))

    async with anyio.create_task_group() as group:
        for _ in range(2):
            group.start_soon(first_start)
    assert sorted(len(each.keys) for each in made) == [0, 1]
    async with Console(plan.store) as console:
        assert [account.name for account in await console.accounts()] == ["main"]
        assert len(await console.keys("main")) == 1


async def test_a_second_start_shows_no_keys() -> None:
    plan = planned()
    first, second = await prepare.set_up_store(plan), await prepare.set_up_store(plan)
    assert set(first.keys) == {"production", "sandbox"}
    assert second.keys == {}
    page = started_page(plan, second, ())
    assert "first start" not in page
    assert "routewright keys create main" in page
    assert "can call no model yet" in page


async def test_a_store_with_an_account_gets_no_other_and_the_page_names_it() -> None:
    plan = planned()
    async with Console(plan.store) as console:
        await console.create_account("acme")
        begun = await prepare.set_up_store(plan)
        assert [account.name for account in await console.accounts()] == ["acme"]
    assert begun.keys == {}
    assert "routewright keys create acme --name" in started_page(plan, begun, ())
