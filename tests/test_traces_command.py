"""``routewright traces`` and ``feedback``: what calls left in a store is listed, shown, written out and removed."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path

import msgspec
import pytest

from routewright.cli import main
from routewright.cli.spans import span_table
from routewright.wire import Content, FunctionCall, ImagePart, ImageUrl, Message, TextPart, ToolCall, Trace

from .sample_store import few, listed, model, plain, record, rescued, trace

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


pytestmark = pytest.mark.usefixtures("store")


def traces(*argv: str) -> int:
    return main(["traces", *argv])


# ls


def test_ls_lists_traces_newest_first_each_on_a_line(capsys: Capture) -> None:
    assert traces("ls") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out == (
        "id          created               status     selected model  duration    cost  notes\n"
        "tr_newest   2026-11-22 11:00:00Z  completed  openai/gpt-4o      2.0 s  $0.002\n"
        "tr_rescued  2026-11-22 10:00:00Z  completed  openai/gpt-4o      2.0 s  $0.002  fallback\n"
        "tr_sandbox  2026-11-22 09:00:00Z  completed  openai/gpt-4o      2.0 s  $0.002  sandbox\n"
        "tr_failed   2026-11-21 10:00:00Z  failed                        2.0 s      $0  router.upstream_failed\n"
        "tr_oldest   2026-11-20 10:00:00Z  completed  openai/gpt-4o      2.0 s  $0.002\n"
    )


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (["status=failed"], ["tr_failed"]),
        (["metadata.team=search,duration_ms>=2000"], ["tr_rescued"]),
        (["--environment", "sandbox"], ["tr_sandbox"]),
        (["--account", "anna"], ["tr_hers"]),
        (["--since", "2026-11-22T09:30:00Z"], ["tr_newest", "tr_rescued"]),
        (["--until", "1d"], ["tr_failed", "tr_oldest"]),
        (["--since", "1w", "--until", "2d"], ["tr_oldest"]),
        (["--limit", "1"], ["tr_newest"]),
    ],
)
def test_ls_selects_traces(argv: list[str], found: list[str], capsys: Capture) -> None:
    assert listed(capsys, *argv) == found


@pytest.mark.parametrize("extra", [[], ["environment=production"], [' status="completed" '], ["--since", "3d"]])
def test_ls_names_the_cursor_of_the_next_page(extra: list[str], capsys: Capture) -> None:
    whole, seen, cursor = listed(capsys, *extra), listed(capsys, *extra, "--limit=2"), ""
    assert traces("ls", *extra, "--limit=2") == 0
    while said := capsys.readouterr().err:
        cursor = said.removeprefix("for older traces add ").rstrip()
        seen += listed(capsys, *extra, "--limit=2", cursor)
        assert traces("ls", *extra, "--limit=2", cursor) == 0
    assert seen == whole


def test_an_empty_ls_says_so_on_stderr(capsys: Capture) -> None:
    assert traces("ls", "status=running") == 0
    assert capsys.readouterr() == ("", "the account 'default' has no such trace; see 'routewright accounts ls'\n")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["polcy_id=x"], "FILTER[0]: unknown key 'polcy_id'; did you mean 'policy_id'?"),
        (["--since", "soon"], "--since: is 'soon'; write a timestamp as 2026-11-22T09:30:00Z, or how long ago, as 30m"),
        (["--limit", "0"], "--limit: must be a whole number from 1 to 200, got 0"),
        (["--cursor", "x"], "the cursor does not belong to this query"),
    ],
)
def test_a_wrong_selection_is_named_as_it_was_written(argv: list[str], said: str, capsys: Capture) -> None:
    assert traces("ls", *argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"routewright: {said}")


# show

RESCUED = """\
Trace tr_rescued

status          completed
model           openai/gpt-4o
cost            $0.002
tokens          100 in, 20 out
duration        2.0 s
created         2026-11-22 10:00:00Z
goal            cost
strategy        balanced
charged         $0.002
fallback used   yes
policy version  inline@2026-11-20
account         default
environment     production
metadata team   search
metadata n      3

span                        start  duration
route                        0 ms     2.0 s  completed, $0.002
├─ decision                  0 ms    2.5 ms  158 rejected, bounds
├─ cache                     0 ms      0 ms  miss
├─ model openai/gpt-4.1 ✗   10 ms    500 ms  openai, error: server
├─ model openai/gpt-4.1 ✗  500 ms    500 ms  attempt 2, openai, error: server
├─ fallback                 1.0 s      0 ms  upstream_5xx, openai/gpt-4o, used
└─ model openai/gpt-4o      1.0 s     1.0 s  attempt 3, openai, stop, ttft 250 ms, 100 in, 20 out,
                                             $0.002
   └─ guardrail pii         2.0 s      0 ms  email, output, redact, count 2

Decision a4218108

model           score  quality     cost  latency s  stability  served
openai/gpt-4.1   0.44     0.31  $0.0032          5        0.9
openai/gpt-4o    0.28     0.12   $0.004          5        0.9     yes

rejected  158 by whitelist
"""


def test_show_is_a_header_a_tree_and_the_candidates(capsys: Capture) -> None:
    assert traces("show", "tr_rescued") == 0
    assert capsys.readouterr() == (RESCUED, "")


def test_show_shows_the_newest_where_none_is_named(capsys: Capture) -> None:
    assert traces("show") == 0
    assert capsys.readouterr().out.startswith("Trace tr_newest\n")
    assert traces("show", "--environment", "sandbox") == 0
    assert capsys.readouterr().out.startswith("Trace tr_sandbox\n")
    assert traces("show", "--account", "nobody") == 2
    assert "the account 'nobody' has no trace" in capsys.readouterr().err


def test_show_prints_the_feedback(capsys: Capture) -> None:
    assert main(["feedback", "tr_rescued", "0.8", "a little long"]) == 0
    assert capsys.readouterr() == ("", "feedback stored: 0.8 for tr_rescued\n")
    traces("show", "tr_rescued")
    out = capsys.readouterr().out
    assert re.search(
        r"\nfeedback score +0\.8\nfeedback comment +a little long\nfeedback at +2026-11-22 12:00:00Z\n", out
    )
    traces("show", "tr_rescued", "--json")
    body = json.loads(capsys.readouterr().out)
    assert body["feedback"] == {"score": 0.8, "comment": "a little long", "at": 1795348800.0}
    assert msgspec.convert(body, Trace) == rescued()


@pytest.mark.parametrize("argv", [["tr_nobody"], ["tr_hers"], ["tr_sandbox", "--environment", "production"]])
def test_a_trace_of_another_account_is_not_found(argv: list[str], capsys: Capture) -> None:
    assert traces("show", *argv) == 2
    assert capsys.readouterr() == ("", f"routewright: no trace '{argv[0]}'\n")


def test_show_prints_captured_content(tmp_path: Path, capsys: Capture) -> None:
    asked = [
        Message("system", "Be brief."),
        Message("user", [TextPart("Why?\ntrace forged"), ImagePart(ImageUrl("x"))]),
    ]
    calls = [ToolCall("1", FunctionCall("look", '{"at":"it"}'))]
    said = Content(messages=asked, output="Because.\x1b[2J", tool_calls=calls)
    record(tmp_path / "own.db", [trace("tr_1", content=said)])
    assert traces("show", "--store", "own.db") == 0
    _, _, content = capsys.readouterr().out.partition("\nContent\n\n")
    assert json.loads(content)["messages"][1]["content"][0]["text"] == "Why?\ntrace forged"
    assert json.loads(content)["output"] == "Because.\x1b[2J"
    assert "\x1b" not in content


def test_on_a_terminal_a_failed_span_is_red_and_every_line_fits(monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setenv("COLUMNS", "90")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert traces("show", "tr_rescued") == 0
    out = capsys.readouterr().out
    assert "\x1b[31m├─ model openai/gpt-4.1 ✗" in out
    assert max(len(re.sub(r"\x1b\[[\d;]*m", "", line)) for line in out.splitlines()) <= 90


def test_an_old_encoding_gets_the_tree_in_ascii(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
    assert main(["traces", "show", "tr_rescued"]) == 0
    page = written.getvalue().decode("ascii")
    assert "\n|- model openai/gpt-4.1 x   10 ms    500 ms  openai, error: server" in page
    assert "\n`- model openai/gpt-4o " in page
    assert "?" not in page


def test_every_span_is_shown_once_whatever_its_parent_is() -> None:
    spans = [
        model(1, "v/root"),
        model(2, "v/child", parent_id=1),
        model(3, "v/grandchild", parent_id=2),
        model(4, "v/orphan", parent_id=77),
        model(5, "v/its own", parent_id=5),
        model(6, "v/round", parent_id=7),
        model(7, "v/about", parent_id=6),
        model(3, "v/same id", parent_id=1),
    ]
    page = plain([span_table(trace("tr_1", spans=spans))])
    tree = [re.split(r"\b  +", line)[0] for line in page.splitlines()[2:]]
    assert tree == [
        "├─ model v/root",
        "│  ├─ model v/child",
        "│  │  └─ model v/grandchild",
        "│  └─ model v/same id",
        "├─ model v/orphan",
        "├─ model v/its own",
        "└─ model v/round",
        "   └─ model v/about",
    ]


def test_a_trace_cannot_command_the_terminal_or_forge_a_line(tmp_path: Path, capsys: Capture) -> None:
    nasty = "v/x\x1b[2J\nroute forged\x85\u2028more\x9b"
    mine = trace("tr_1", selected_model=nasty, error=nasty, metadata={"k": nasty}, spans=[model(1, nasty)])
    path = record(tmp_path / "own.db", [mine])
    for argv in (["show", "tr_1"], ["ls"]):
        assert traces(*argv, "--store", str(path)) == 0
        out = capsys.readouterr().out
        assert "forged" in out
        assert not re.search(r"^route forged", out, re.MULTILINE)
        assert not set(out) & {"\x1b", "\x9b", "\x85", "\u2028"}
    assert traces("show", "tr_1", "--json", "--store", str(path)) == 0
    out = capsys.readouterr().out
    assert "\x9b" not in out
    assert json.loads(out)["selected_model"] == nasty


TURNED = [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]


@pytest.mark.parametrize("code", TURNED, ids=hex)
def test_a_trace_cannot_change_the_direction_of_text(code: int, tmp_path: Path, capsys: Capture) -> None:
    nasty = f"left{chr(code)}right"
    said = Content(messages=[Message("user", nasty)], output=nasty)
    path = record(tmp_path / "own.db", [trace("tr_1", error=nasty, metadata={nasty: nasty}, content=said)])
    for argv in (["show", "tr_1"], ["ls"], ["show", "tr_1", "--json"], ["ls", "--json"], ["export"]):
        assert traces(*argv, "--store", str(path)) == 0
        out = capsys.readouterr().out
        assert chr(code) not in out
        assert ("leftright" in out) != (f"left\\u{code:04x}right" in out)
    assert json.loads(out)["content"]["output"] == nasty


# export


def export(*argv: str) -> int:
    return main(["traces", "export", *argv])


def test_export_writes_whole_traces_one_a_line(capsys: Capture) -> None:
    assert export("--since", "3h") == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert [msgspec.json.decode(line, type=Trace) for line in out.splitlines()] == few()[:3]
    assert export("status=failed") == 0
    assert [json.loads(line)["id"] for line in capsys.readouterr().out.splitlines()] == ["tr_failed"]
    assert export("nonsense") == 2
    assert capsys.readouterr().out == ""


def test_export_writes_what_a_user_said_of_a_trace_beside_it(capsys: Capture) -> None:
    assert main(["feedback", "tr_failed", "0.5", "so so"]) == 0
    assert export() == 0
    said = {trace["id"]: trace["feedback"] for trace in map(json.loads, capsys.readouterr().out.splitlines())}
    assert {trace_id for trace_id, feedback in said.items() if feedback is not None} == {"tr_failed"}
    assert (said["tr_failed"]["score"], said["tr_failed"]["comment"]) == (0.5, "so so")


# delete


def delete(*argv: str) -> int:
    return main(["traces", "delete", *argv])


@pytest.mark.parametrize(
    ("argv", "gone"),
    [
        (["tr_failed"], ["tr_failed"]),
        (["metadata.team=search"], ["tr_rescued"]),
        (["--until", "1d"], ["tr_failed", "tr_oldest"]),
        (["cost_usd>0", "--until", "1d"], ["tr_oldest"]),
        (["--everything", "--environment", "sandbox"], ["tr_sandbox"]),
        (["--everything"], ["tr_newest", "tr_rescued", "tr_sandbox", "tr_failed", "tr_oldest"]),
    ],
)
def test_delete_removes_what_is_named_and_says_how_many(argv: list[str], gone: list[str], capsys: Capture) -> None:
    before = listed(capsys)
    assert delete(*argv, "--yes") == 0
    assert capsys.readouterr() == ("", f"{len(gone)} trace{'s' * (len(gone) > 1)} deleted\n")
    assert listed(capsys) == [each for each in before if each not in gone]
    assert listed(capsys, "--account", "anna") == ["tr_hers"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "ID | FILTER: is missing; give an id, a filter, --since or --until; --everything means all"),
        (["--everything", "status=failed"], "--everything: cannot be combined with a selection"),
        (["tr_failed"], "1 trace would be deleted; repeat with --yes to do it"),
        (["tr_nobody"], "no trace 'tr_nobody'"),
        (["nonsense=1", "--yes"], "FILTER[0]: unknown key 'nonsense'"),
    ],
)
def test_delete_refuses_what_is_left_open(argv: list[str], said: str, capsys: Capture) -> None:
    assert delete(*argv) == 2
    assert capsys.readouterr().err.startswith(f"routewright: {said}")
    assert len(listed(capsys)) == 5


def test_of_many_traces_only_so_many_are_counted(monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setattr("routewright.cli.traces.COUNTED", 3)
    assert delete("--everything") == 2
    assert "routewright: 3 traces or more would be deleted; repeat with --yes" in capsys.readouterr().err


# feedback


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["tr_newest", "1.5"], "SCORE: is 1.5; give a number from 0 (bad) to 1 (good)"),
        (["tr_nobody", "1"], "no trace 'tr_nobody'"),
    ],
)
def test_feedback_needs_a_trace_and_a_score_from_0_to_1(argv: list[str], said: str, capsys: Capture) -> None:
    assert main(["feedback", *argv]) == 2
    assert capsys.readouterr().err.startswith(f"routewright: {said}")
