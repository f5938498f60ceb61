"""Hooks of MkDocs: the order of the pages, links that lead out of this folder, and ``llms.txt``.

``README.md`` is the one list of pages, in reading order. Files of the repository that a page links to become pages of
the site, since its readers have no clone.
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
MOVED = {
    ROOT / "README.md": "index.md",
    DOCS / "README.md": "contents.md",
    ROOT / "benchmarks/README.md": "benchmarks.md",
}
"""Pages whose place on the site is another than in the repository."""

_BLOCK = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!\w+:|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
_START = re.compile(r"### (?P<heading>.+)|- (?P<item>[^\[:]+):|(?P<end>## |- )")
_DECLARATION = re.compile(r"(?<!`)(`+)(?!`)((?:(?!\1)[^\n])*<!(?:(?!\1)[^\n])*)\1(?!`)")
"""Code with ``<!``, which Python-Markdown takes for a declaration of HTML, and fails."""
_HIDDEN = "---\nsearch:\n  exclude: true\n---\n"
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".sql": "sql", ".toml": "toml"}

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
    """Add the pages from elsewhere, and the files of the source that any page links to."""
    files.remove(files.src_uris["README.md"])
    for source, uri in MOVED.items():
        files.append(File.generated(config, uri, content=source.read_text("utf-8")))
    linked = {
        target
        for file in files.documentation_pages()
        for link in _LINK.finditer(_BLOCK.sub("", file.content_string))
        if _is_source(target := _target(file, link["path"]))
    }
    for folder in [target for target in linked if target.is_dir()]:
        linked |= {path for path in folder.rglob("*.*") if path.is_file() and "__pycache__" not in path.parts}
    for target in linked:
        files.append(File.generated(config, _uri(target), content=_source_page(target)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links at where their targets stand on the site."""

    def moved(link: re.Match[str]) -> str:
        uri = _uri(_target(page.file, link["path"]))
        return f"]({relpath(uri, Path(page.file.src_uri).parent)}{link['anchor'] or ''})"

    if page.file.src_uri.startswith("source/"):
        return markdown
    parts = _BLOCK.split(markdown)
    parts[::2] = [_DECLARATION.sub(_as_html, _LINK.sub(moved, text)) for text in parts[::2]]
    return "".join(parts)


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


def _target(file: File, path: str) -> Path:
    """The file in the repository that a link on a page leads to."""
    page = next((source for source, uri in MOVED.items() if uri == file.src_uri), DOCS / file.src_uri)
    return (page.parent / path).resolve()


def _is_source(target: Path) -> bool:
    return target.exists() and target not in MOVED and DOCS not in target.parents


def _uri(target: Path) -> str:
    """Where a file of the repository stands on the site, as the path of its Markdown."""
    if target in MOVED:
        return MOVED[target]
    return f"source/{target.relative_to(ROOT)}.md" if _is_source(target) else relpath(target, DOCS)


def _source_page(target: Path) -> str:
    """A page that shows a file, or lists a folder."""
    title = f"{_HIDDEN}\n# `{target.relative_to(ROOT)}`\n\n"
    if target.is_dir():
        names = sorted(str(path.relative_to(target)) for path in target.rglob("*.*") if path.suffix != ".pyc")
        return title + "\n".join(f"- [`{name}`]({target.name}/{name}.md)" for name in names)
    fence = "`" * 8
    return f"{title}{fence}{_LANGUAGES.get(target.suffix, 'text')}\n{target.read_text('utf-8')}{fence}\n"


def _summary(markdown: str) -> str:
    """The first sentence below the title of a page."""
    paragraphs = re.split(r"\n\s*\n", markdown)
    first = next((text for text in paragraphs if re.match(r"(?!```)[\w`*\[]", text)), "")
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(first.split()))
    return re.split(r"(?<=[.:?])\s", text)[0].removesuffix(":")
