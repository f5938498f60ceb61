"""The tutorial shows what the first start prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from docs._blocks import ROOT, blocks
from msgspec.structs import replace

from routewright import Router
from routewright.cli import main
from routewright.cli.serve import started_page
from routewright.cli.show import plain
from routewright.serve.plan import Address, Begun
from routewright.server.admin import Admin

from .test_supervisor import PLAN


def test_the_tutorial_shows_what_the_first_start_prints() -> None:
    plan = replace(PLAN, address=Address("127.0.0.1", 8080), workers=1, store="sqlite:///routewright.db")
    page = plain(started_page(plan, Begun({"production": "sk_live_abc", "sandbox": "sk_test_abc"}), ()), 100)
    tutorial = (ROOT / "docs" / "tutorial" / "first-server.md").read_text("utf-8")
    (shown,) = [block.text for block in blocks(tutorial) if "first start" in block.text]
    assert masked(shown) == masked(page)


def test_the_container_of_the_how_to_can_serve_and_is_asked_for_its_health_where_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deploy = (ROOT / "docs" / "how-to" / "deploy.md").read_text("utf-8")
    (shown,) = [block.text for block in blocks(deploy) if block.language == "dockerfile"]
    monkeypatch.setenv("ROUTEWRIGHT_STORE", str(tmp_path / "routewright.db"))
    (command,) = re.findall("^CMD (.+)$", shown, re.MULTILINE)
    assert main([*json.loads(command), "--check"]) == 0
    said = capsys.readouterr().out
    (health,) = re.findall("http://127.0.0.1:9100(/[a-z]+)", shown)
    assert "http://127.0.0.1:9100 " in said
    assert health in Admin(Router.sandbox(), "", 1.0).addresses


def masked(text: str) -> str:
    return re.sub(r"[ \t]+", " ", re.sub(r"\bsk_(live|test)_[\w.]+", r"sk_\1_*", text))
