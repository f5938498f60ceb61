"""The tutorial shows the actual output of the first start."""

from __future__ import annotations

import re

from docs._blocks import ROOT, blocks
from msgspec.structs import replace

from routewright.cli.serve import started_page
from routewright.serve.plan import Address, Setup

from .test_supervisor import PLAN


def test_the_tutorial_shows_what_the_first_start_prints() -> None:
    plan = replace(PLAN, address=Address("127.0.0.1", 8080), workers=1, store="sqlite:///routewright.db")
    page = started_page(plan, Setup({"production": "sk_live_abc", "sandbox": "sk_test_abc"}), ())
    tutorial = (ROOT / "docs" / "tutorial" / "first-server.md").read_text("utf-8")
    (shown,) = [block.text for block in blocks(tutorial) if "first start" in block.text]
    assert masked(shown) == masked(page)


def masked(text: str) -> str:
    return re.sub(r"[ \t]+", " ", re.sub(r"\bsk_(live|test)_[\w.]+", r"sk_\1_*", text))
