"""HTML elements for notebooks: every text is escaped, and all pages share one style.

A page is a self-contained fragment without scripts, ids or external resources, and takes its colours from the theme
around it. Without the style, which some viewers strip, it still reads as text and tables."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from routewright.wire.analytics import counted

TEXT_SHOWN = 160
"""Characters shown of a value of any length."""

_MENDED = dict.fromkeys((*range(9), 11, 12, *range(14, 32), 127), "�")
"""Control characters, which HTML does not allow."""
_STYLE = """
.routewright{font-size:13px;line-height:1.45;max-width:76em;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.routewright div,.routewright span{unicode-bidi:isolate}
.routewright table{border-collapse:collapse;border:0;margin:.2em 0;width:100%;font-size:inherit}
.routewright tr{background:transparent!important}
.routewright th,.routewright td{border:0;border-top:1px solid rgba(128,128,128,.25);padding:.3em .9em .3em 0;
 color:inherit;font-weight:normal;text-align:left;vertical-align:top;white-space:normal;max-width:none}
.routewright thead th{border-top:0;opacity:.7;font-size:.92em;vertical-align:bottom}
.routewright summary{cursor:pointer;padding:.3em 0}
.routewright details{border-top:1px solid rgba(128,128,128,.25);margin-top:.5em}
.routewright .rw-part{margin:.5em 0}
.routewright .rw-head{font-weight:600;margin-top:1em}
.routewright .rw-strong{font-weight:600}
.routewright .rw-dim{opacity:.7}
.routewright .rw-wide{overflow-x:auto}
.routewright .rw-text{white-space:pre-wrap;unicode-bidi:plaintext;padding:.1em 0 .1em .8em;
 border-left:3px solid rgba(33,118,210,.7);margin:.5em 0;max-height:32em;overflow:auto}
.routewright .rw-chip{display:inline-block;border-radius:.7em;padding:0 .6em;margin:.1em .2em .1em 0;
 background:rgba(128,128,128,.18)}
.routewright .rw-good{background:rgba(46,160,67,.3)}
.routewright .rw-bad{background:rgba(218,54,51,.32)}
.routewright .rw-fair{background:rgba(219,148,0,.32)}
.routewright .rw-number{text-align:right;white-space:nowrap}
.routewright .rw-waterfall{table-layout:fixed;min-width:54em}
.routewright .rw-ranking{table-layout:auto;width:auto;min-width:40em}
.routewright .rw-ranking th,.routewright .rw-ranking td{white-space:nowrap}
.routewright .rw-track{position:relative;height:.95em;margin-top:.2em;border-radius:2px;
 background:rgba(128,128,128,.13);overflow:hidden}
.routewright .rw-bar{position:absolute;top:0;bottom:0;min-width:3px;border-radius:2px;overflow:hidden;
 background:rgba(128,128,128,.8)}
.routewright .rw-wait{height:100%;box-sizing:border-box;background:rgba(255,255,255,.45);
 border-right:2px solid rgba(0,0,0,.55)}
.routewright .rw-swatch{display:inline-block;width:.65em;height:.65em;margin-right:.45em;border-radius:2px;
 background:rgba(128,128,128,.8)}
.routewright .rw-decision{background:rgba(137,87,229,.9)}
.routewright .rw-cache{background:rgba(0,150,136,.9)}
.routewright .rw-model{background:rgba(33,118,210,.9)}
.routewright .rw-fallback{background:rgba(219,148,0,.95)}
.routewright .rw-guardrail{background:rgba(214,51,132,.9)}
.routewright .rw-bar.rw-error{background:rgba(218,54,51,.95)}
.routewright .rw-bar.rw-cancelled{background:rgba(128,128,128,.7)}
.routewright .rw-term{display:inline-block;position:relative;vertical-align:middle;width:4em;height:.4em;
 margin-right:.4em;border-radius:2px;background:rgba(128,128,128,.2);overflow:hidden}
.routewright .rw-fill{display:block;height:100%;background:rgba(33,118,210,.9)}
"""


class Html(str):
    """Text that is HTML already. Any other text is escaped where it is put in."""

    __slots__ = ()


def element(tag: str, *inside: str, **attributes: str) -> Html:
    """An element. ``class_`` is the attribute ``class``, ``aria_hidden`` is ``aria-hidden``."""
    said = "".join([f' {name.rstrip("_").replace("_", "-")}="{_safe(value)}"' for name, value in attributes.items()])
    return Html(f"<{tag}{said}>{joined(inside)}</{tag}>")


def joined(parts: Iterable[str], between: str = "") -> Html:
    """The parts that are not empty, one after the other."""
    return Html(_safe(between).join([_safe(part) for part in parts if part]))


def page(name: str, *parts: str) -> Html:
    """A whole page with its style. ``name``: its label for screen readers."""
    return element("div", element("style", Html(_STYLE)), *parts, class_="routewright", role="group", aria_label=name)


def facts(*parts: str) -> Html:
    """One line of facts."""
    return element("div", joined(parts, " · "))


def lines(*parts: str) -> list[Html]:
    """One line for each part that is not empty."""
    return [element("div", part) for part in parts if part]


def more(count: int, one: str, rest: str = "") -> Html:
    """The number of things left out, if any."""
    return dim(joined([f"and {counted(count, f'more {one}')}", rest], " ")) if count > 0 else Html()


def chip(text: str, kind: str = "") -> Html:
    """A short word that stands out. ``kind``: ``good``, ``fair``, ``bad`` or empty."""
    return element("span", text, class_=f"rw-chip rw-{kind}" if kind else "rw-chip")


def dim(*parts: str) -> Html:
    """Less important text."""
    return element("span", *parts, class_="rw-dim")


def strong(*parts: str) -> Html:
    """More important text."""
    return element("span", *parts, class_="rw-strong")


def heading(text: str) -> Html:
    """The title of a part; not a heading that a notebook would list among its own."""
    return element("div", text, class_="rw-head")


def table(kind: str, head: Iterable[Html], rows: Iterable[Html]) -> Html:
    """A table that scrolls on its own if it is too wide."""
    top = element("thead", element("tr", *head))
    return element("div", element("table", top, element("tbody", *rows), class_=f"rw-{kind}"), class_="rw-wide")


def column(text: str, **attributes: str) -> Html:
    """The head of a column."""
    return element("th", text, scope="col", **attributes)


def cell(*parts: str, **attributes: str) -> Html:
    """A cell of a table."""
    return element("td", *parts, **attributes)


def percent(part: float, whole: float) -> float:
    """The share of a part, 0 to 100, for any numbers."""
    share = 100 * (part / whole) if whole > 0 else 0.0
    return min(max(0.0, share), 100.0) if share == share else 0.0


def short(text: str, most: int = TEXT_SHOWN) -> str:
    """The beginning of a text."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _safe(part: str) -> str:
    if isinstance(part, Html):
        return part
    return escape(part.encode("utf-8", "replace").decode("utf-8").translate(_MENDED))
