"""Providers and storages of other packages, found by their entry points (``docs/how-to/own-provider.md``)."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
import tomllib
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from routewright import MemoryStorage, Router, TraceStore, ValidationFailed, open_storage
from routewright.backends.providers.hosts import ENDPOINTS
from routewright.cli import main
from routewright.errors import StorageUnavailable

EXAMPLE = Path(__file__).parent / "data" / "plugin_example"
SECRET_URL = "odd://me:hunter2@host/x?key=hunter%203"
Install = Callable[..., None]


def make_another_thing(*args: object, **options: object) -> object:
    return {}


@pytest.fixture(autouse=True)
def no_vendor(monkeypatch: pytest.MonkeyPatch) -> None:
    for vendor in ENDPOINTS.values():
        for variable in (*vendor.key_variables, vendor.url_variable or ""):
            monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Lays a package out as an installer does."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def lay_out(name: str, version: str, entries: dict[str, dict[str, str]], *modules: Path) -> None:
        metadata = site / f"{name.replace('-', '_')}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        lines = [
            line
            for group, names in entries.items()
            for line in (f"[{group}]", *(f"{n} = {v}" for n, v in names.items()))
        ]
        (metadata / "entry_points.txt").write_text("\n".join(lines))
        for module in modules:
            shutil.copy(module, site)
            monkeypatch.delitem(sys.modules, module.stem, raising=False)

    return lay_out


@pytest.fixture
def example(install: Install) -> None:
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    install(project["name"], project["version"], project["entry-points"], EXAMPLE / "routewright_acme.py")


@pytest.mark.usefixtures("example")
def test_a_storage_is_opened_by_its_url() -> None:
    with Router.sandbox(storage=open_storage("shelf://one")).blocking as router:
        router.route("Hello")
        assert len(TraceStore("shelf://one").blocking.query().data) == 1
        assert TraceStore("shelf://two").blocking.query().data == []


@pytest.mark.usefixtures("example")
def test_the_command_line_opens_a_storage_by_its_url(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["route", "--sandbox", "--store", "shelf://cli", "Hello"]) == 0
    capsys.readouterr()
    assert main(["traces", "ls", "--store", "shelf://cli"]) == 0
    assert "completed" in capsys.readouterr().out


@pytest.mark.usefixtures("example")
def test_a_server_takes_both_from_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "serve.toml").write_text('store = "shelf://server"\n')
    monkeypatch.setenv("ROUTEWRIGHT_PROVIDERS", "acme")
    assert main(["serve", "--check", "--config", str(tmp_path / "serve.toml")]) == 0
    out, err = capsys.readouterr()
    assert "shelf://server" in out
    assert "1 for live keys" in out
    assert err == ""


@pytest.mark.usefixtures("example")
def test_a_provider_is_named_by_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROUTEWRIGHT_PROVIDERS", " acme, ")
    monkeypatch.setenv("ACME_GREETING", "Hi")
    with Router().blocking as router:
        assert router.route("there").output == "Hi: there"


@pytest.mark.usefixtures("example")
def test_an_error_of_the_plug_in_is_its_own() -> None:
    with pytest.raises(ValidationFailed, match="url: names no shelf; write shelf://NAME"):
        open_storage("shelf://")


@pytest.mark.parametrize("url", ["memory:", "sqlite:///traces.db"])
def test_no_entry_points_are_read_for_what_is_built_in(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**selection: Any) -> None:
        raise AssertionError(f"entry points are read: {selection}")

    monkeypatch.setattr(importlib.metadata, "entry_points", refuse)
    open_storage(url)
    Router(providers=None).blocking.close()


def test_built_in_names_win(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        "rogue", "1.0", {"routewright.storages": {"memory": "nowhere:x"}, "routewright.providers": {"groq": "no:x"}}
    )
    assert isinstance(open_storage("memory:"), MemoryStorage)
    monkeypatch.setenv("ROUTEWRIGHT_PROVIDERS", "groq")
    with pytest.raises(ValidationFailed, match="'groq' is built in; leave it out, and set GROQ_API_KEY"):
        Router().models()


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("not_there:x", "'odd' of the package broken 2.0 fails: ModuleNotFoundError: No module named 'not_there'"),
        ("json:loads", "'odd' of the package broken 2.0 fails: TypeError: "),
        ("tests.test_plugins:make_another_thing", "'odd' of the package broken 2.0 fails: TypeError: a dict is not a "),
    ],
)
def test_a_broken_plug_in_is_one_error_that_names_its_package(
    entry: str, message: str, install: Install, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install("broken", "2.0", {"routewright.storages": {"odd": entry}, "routewright.providers": {"odd": entry}})
    with pytest.raises(ValidationFailed, match=message):
        open_storage("odd://me:hunter2@host")
    monkeypatch.setenv("ROUTEWRIGHT_PROVIDERS", "odd")
    with pytest.raises(ValidationFailed, match=f"ROUTEWRIGHT_PROVIDERS: {message}"):
        Router().models()
    assert main(["traces", "ls", "--store", "odd://me:hunter2@host"]) == 2
    assert message in (error := capsys.readouterr().err)
    assert "hunter2" not in error


def leave(url: str, **options: object) -> None:
    raise SystemExit(f"no {url}")


def refuse(url: str, **options: object) -> None:
    raise ValidationFailed.at("url", f"hunter2 is refused at {url}", "write another than hunter 3")


def fail(url: str, **options: object) -> None:
    raise StorageUnavailable("dsn host=h user=me password='hunter2' key=hunter 3")


@pytest.mark.parametrize("function", [leave, refuse, fail])
def test_an_error_of_a_plug_in_never_holds_what_its_url_hides(function: Callable[..., None], install: Install) -> None:
    install("broken", "2.0", {"routewright.storages": {"odd": f"{__name__}:{function.__name__}"}})
    with pytest.raises(ValidationFailed) as caught:
        open_storage(SECRET_URL)
    assert "hunter" not in "".join(traceback.format_exception(caught.value))
    assert "***" in str(caught.value)


def test_a_user_without_a_password_is_hidden_as_one(install: Install) -> None:
    install("broken", "2.0", {"routewright.storages": {"odd": f"{__name__}:leave"}})
    with pytest.raises(ValidationFailed, match=r"fails: SystemExit: no odd://\*\*\*@host; update"):
        open_storage("odd://a-token@host")


def test_a_word_without_a_colon_is_no_scheme(example: None) -> None:
    with pytest.raises(ValidationFailed, match="url: is 'shelf'; write 'sqlite:///shelf' for that file"):
        open_storage("shelf")


def test_two_packages_with_one_name_are_refused(install: Install) -> None:
    for name in ("one", "two"):
        install(name, "1.0", {"routewright.storages": {"odd": "json:loads"}})
    with pytest.raises(ValidationFailed, match=r"'odd' is in the packages '(one|two) 1.0', '(one|two) 1.0'; uninstall"):
        open_storage("odd://host")


def test_a_name_that_no_package_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationFailed, match="write memory: or sqlite:///"):
        open_storage("cassandra://host")
    monkeypatch.setenv("ROUTEWRIGHT_PROVIDERS", "acme")
    with pytest.raises(ValidationFailed, match="no installed package has the provider 'acme'; install its package"):
        Router().models()
