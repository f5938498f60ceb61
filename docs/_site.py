"""Hooks of MkDocs: the order of the pages, links that lead out of this folder, and ``llms.txt``.

``README.md`` is the one list of pages, in reading order. Links to the source lead to the repository, and those of the
front page to pages of the site.
"""

from __future__ import annotations

import re
from os.path import relpath
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
ROOT = DOCS.parent
REPOSITORY = "https://github.com/routewright/routewright"
"""Not MkDocs' ``repo_url``: for that, the theme asks the host for stars on every page."""
MOVED = {
    ROOT / "README.md": "index.md",
    DOCS / "README.md": "contents.md",
    ROOT / "benchmarks/README.md": "benchmarks.md",
}
"""Pages whose place on the site is another than in the repository."""

_BLOCK = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(\]\(|^\[[^\]\n]+\]: )(?!#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?", re.MULTILINE)
_HERE = re.compile(
    rf"(?:{REPOSITORY}/(?:blob|tree)/main|{REPOSITORY.replace('//github', '//raw.githubusercontent')}/main)/(.+)"
)
_START = re.compile(r"### (?P<heading>.+)|- (?P<item>[^\[:]+):|(?P<end>## |- )")
_DECLARATION = re.compile(r"(?<!`)(`+)(?!`)((?:(?!\1)[^\n])*<!(?:(?!\1)[^\n])*)\1(?!`)")
"""Code with ``<!``, which Python-Markdown takes for a declaration of HTML, and fails."""

_parts: list[Section | Page] = []
"""The navigation, for ``llms.txt``."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the pages from this folder, in the order of the index."""
    config.docs_dir = str(DOCS)
    config.nav = navigation((DOCS / "README.md").read_text("utf-8"))
    return config


def navigation(index: str) -> list[str | dict[str, list[str]]]:
    """Pages in the order in which the index first links to them, by section.

    An item like ``- Call models:`` and a heading of the third level begin a section, and an item without a name belongs
    to the heading above it, if there is one. The tutorials come before all sections.
    """
    nav: list[str | dict[str, list[str]]] = [{"Start": ["index.md", "contents.md"]}]
    seen: set[str] = set()
    heading, section = "", "Start"
    for line in index.splitlines():
        if start := _START.match(line):
            heading = start["heading"] or ("" if start["end"] == "## " else heading)
            section = start["item"] or heading
        for link in _LINK.finditer(line):
            page = link["path"]
            if page in seen or (section == "Start" and not page.startswith("tutorial/")):
                continue
            seen.add(page)
            if not section:
                nav.append(page)
            elif isinstance(last := nav[-1], dict) and section in last:
                last[section].append(page)
            else:
                nav.append({section: [page]})
    return nav


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from elsewhere."""
    files.remove(files.src_uris["README.md"])
    for source, uri in MOVED.items():
        files.append(File.generated(config, uri, content=source.read_text("utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at where their targets stand on the site, or in the repository."""
    source = next((path for path, uri in MOVED.items() if uri == page.file.src_uri), DOCS / page.file.src_uri)

    def moved(link: re.Match[str]) -> str:
        here = _HERE.match(link["path"])
        if here is None and re.match(r"\w+:", link["path"]):
            return link[0]
        target = ROOT / here[1] if here else (source.parent / link["path"]).resolve()
        return f"{link[1]}{_address(target, page.file.src_uri)}{link['anchor'] or ''}"

    parts = _BLOCK.split(markdown)
    parts[::2] = [_DECLARATION.sub(_as_html, _LINK.sub(moved, text)) for text in parts[::2]]
    return "".join(parts)


def _address(target: Path, page: str) -> str:
    """Where a page finds a file of the repository; one that does not exist is left for MkDocs to complain about."""
    uri = MOVED.get(target, relpath(target, DOCS))
    if target.exists() and uri.startswith(".."):
        return f"{REPOSITORY}/{'tree' if target.is_dir() else 'blob'}/main/{target.relative_to(ROOT)}"
    return relpath(uri, Path(page).parent)


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Keep the navigation for ``llms.txt``."""
    _parts[:] = nav.items
    return nav


def on_post_build(config: MkDocsConfig) -> None:
    """Write the Markdown of the pages beside them, and ``llms.txt``, the list of it (llmstxt.org)."""
    site = Path(config.site_dir)
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    for part in _parts:
        pages = [part] if isinstance(part, Page) else part.children
        lines += ["", f"## {part.title}", ""]
        for page in pages:
            lines.append(f"- [{page.title}]({page.file.src_uri}): {_summary(page.markdown)}")
            (site / page.file.src_uri).write_text(page.markdown, "utf-8")
    (site / "llms.txt").write_text("\n".join(lines) + "\n", "utf-8")


def _as_html(code: re.Match[str]) -> str:
    """Code as HTML of which Markdown reads nothing."""
    text = code[2].strip().replace(r"\|", "|")
    return f"<code>{''.join(c if c.isalnum() or c == ' ' else f'&#{ord(c)};' for c in text)}</code>"


def _summary(markdown: str) -> str:
    """The first sentence below the title of a page."""
    paragraphs = re.split(r"\n\s*\n", markdown)
    first = next((text for text in paragraphs if re.match(r"(?!```)[\w`*\[]", text)), "")
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(first.split()))
    return re.split(r"(?<=[.:?])\s", text)[0].removesuffix(":")
