"""The files of the page: small, of this host alone, and those that the manifest of vendored modules names."""

from __future__ import annotations

import gzip
import json
import re
from hashlib import sha256
from pathlib import Path

import routewright.ui

STATIC = Path(routewright.ui.__file__).parent / "static"
VENDOR = STATIC / "vendor"
FILES = sorted(path for path in STATIC.rglob("*") if path.is_file())
MOST_BYTES = 150 << 10
MOST_LINES = 2500
_ADDRESS = re.compile(r"""(?:https?:)?//(?=[a-z0-9-]+\.[a-z])[^\s"'`)]+""")
_NAMESPACES = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml", "http://www.w3.org/1998/Math/MathML"}


def test_the_page_is_small() -> None:
    served = [path for path in FILES if not path.name.startswith("LICENSE")]
    assert sum(len(gzip.compress(path.read_bytes(), 9)) for path in served) <= MOST_BYTES
    own = [path.read_text("utf-8") for path in FILES if VENDOR not in path.parents]
    lines = [line.strip() for text in own for line in text.splitlines()]
    assert sum(bool(line) and not line.startswith(("//", "/*")) for line in lines) <= MOST_LINES


def test_the_page_has_no_line_over_120_columns() -> None:
    for path in FILES:
        if VENDOR not in path.parents and path.suffix in (".js", ".css"):
            assert [line for line in path.read_text("utf-8").splitlines() if len(line) > 120] == [], path


def test_the_page_loads_nothing_from_another_host() -> None:
    for path in FILES:
        if not path.name.startswith("LICENSE"):
            text = "\n".join(line for line in path.read_text("utf-8").splitlines() if not line.startswith("/*! http"))
            assert set(_ADDRESS.findall(text)) <= _NAMESPACES, path


def test_the_page_has_no_code_inline() -> None:
    html = (STATIC / "index.html").read_text("utf-8")
    assert re.findall(r"<script(?![^>]*\ssrc=)[^>]*>|<style|\s(?:style|on\w+)=|javascript:", html) == []
    for path in FILES:
        if path.suffix == ".js" and VENDOR not in path.parents:
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc",
                                 path.read_text("utf-8")), path  # fmt: skip


def test_nothing_but_the_token_is_in_the_browsers_storage() -> None:
    texts = [path.read_text("utf-8") for path in FILES if VENDOR not in path.parents and path.suffix == ".js"]
    assert not re.search(r"sessionStorage|indexedDB|document\.cookie", "".join(texts))
    assert re.findall(r"localStorage.*", "".join(texts)) == [
        'localStorage.getItem(PLACE) ?? "";',
        "localStorage.setItem(PLACE, token);",
        "localStorage.removeItem(PLACE);",
    ]  # fmt: skip


def test_every_import_names_a_file() -> None:
    for path in FILES:
        if path.suffix in (".js", ".mjs"):
            for name in re.findall(r"""\bfrom\s*["']([^"']+)["']""", path.read_text("utf-8")):
                assert (path.parent / name).is_file(), f"{path.name} imports {name}"


def test_vendored_modules_are_as_they_were_published_and_have_licences() -> None:
    manifest = json.loads((VENDOR / "versions.json").read_text("utf-8"))
    modules = {path.name for path in VENDOR.iterdir()} - {"versions.json"}
    licences = {f"LICENSE.{package}" for package in manifest["versions"]}
    assert modules == set(manifest["sha256"]) | licences
    for name, digest in manifest["sha256"].items():
        assert sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name
    for name in licences:
        assert re.search("MIT|Apache", (VENDOR / name).read_text("utf-8")), name
