"""The command: the answer goes to standard output, all else beside it, and the exit code says how it went."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from routewright import ProviderFault, Router, RouteRequest, RouterError, UpstreamCall, __version__
from routewright.backends.providers.hosts import ENDPOINTS
from routewright.backends.providers.sandbox import last_user_text
from routewright.cli import main
from routewright.cli.command import EXIT_CODES, exit_code, parser
from routewright.cli.route import request_of
from routewright.cli.show import Line, Row, Screen, Table, facts, render
from routewright.cli.spans import trace_page
from routewright.wire import Budget, Fallback, ImagePart, ImageUrl, Message, Params, TextPart

from .model_servers import LocalServer, ollama
from .sample_store import model, plain, trace

COMMAND = [sys.executable, "-m", "routewright"]
README = ["route", "--sandbox", "--explain", "--trace", "Why is the sky blue?"]

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: Patch) -> None:
    for host in ENDPOINTS.values():
        for name in (*host.key_variables, host.url_variable):
            if name is not None:
                monkeypatch.delenv(name, raising=False)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "ROUTEWRIGHT_STORE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    feed(monkeypatch, b"")


def feed(monkeypatch: Patch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def sandbox(monkeypatch: Patch, **given: Any) -> None:
    """Let ``--sandbox`` mean these answers or faults."""
    monkeypatch.setattr(Router, "sandbox", partial(Router.sandbox, **given))


def echo(call: UpstreamCall) -> str:
    return f"<{last_user_text(call.messages)}>"


def on_terminal(monkeypatch: Patch, *streams: str) -> None:
    for name in streams:
        monkeypatch.setattr(getattr(sys, name), "isatty", lambda: True)


def encoded(monkeypatch: Patch, encoding: str) -> io.BytesIO:
    """Let standard output have an encoding. Returns what is written to it."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding))
    return written


def request(*argv: str) -> RouteRequest:
    return request_of(parser().parse_args(argv), Router.sandbox().models())


# what goes where


def test_stdout_holds_the_answer_and_nothing_else(capsys: Capture) -> None:
    assert main(README) == 0
    out, err = capsys.readouterr()
    assert re.fullmatch(r"This is a canned answer in the name of \S+\. The sandbox calls no model.*\n", out)
    for said in ("model ", "cost ", "tokens ", "time ", "trace   tr_", "chosen", "runner-up", "rejected", "└─ model"):
        assert said in err
    assert max(map(len, err.splitlines())) <= 100


def test_json_is_one_line_with_the_route_response(capsys: Capture) -> None:
    assert main(["route", "--sandbox", "--json", "Hello"]) == 0
    out, err = capsys.readouterr()
    assert (out.count("\n"), err) == (1, "")
    body = json.loads(out)
    assert body["routing"]["selected_model"] == body["primary_model"]
    assert body["trace_id"].startswith("tr_")
    assert not {"decision", "trace"} & set(body)


def test_json_holds_decision_and_trace_if_asked_for(capsys: Capture) -> None:
    main(["route", "--sandbox", "--json", "--explain", "--trace", "Hello"])
    body = json.loads(capsys.readouterr().out)
    decision = body["decision"]
    assert len(decision["candidates"]) + len(decision["rejected"]) == len(Router.sandbox().models())
    assert decision["candidates"][0]["model"] == decision["model"] == body["primary_model"]
    assert body["trace"]["spans"][0]["digest"] == decision["digest"]
    assert body["trace"]["id"] == body["trace_id"]
    assert "tokens" in decision["input"]


def test_a_trace_shows_the_range_of_an_estimated_cost() -> None:
    cost: dict[str, Any] = {"cost_usd": 0.002, "cost_range_usd": (0.001, 0.03)}
    page = plain(trace_page(trace("tr_1", spans=[model(1, "a/m", **cost)], **cost)))
    assert "completed, $0.002 ($0.001 to $0.03)" in page
    assert "stop, $0.002 ($0.001 to $0.03)" in page


def test_a_fallback_is_named(monkeypatch: Patch, capsys: Capture) -> None:
    primary = Router.sandbox().decide("Hello").model
    sandbox(monkeypatch, faults={primary: "auth"})
    assert main(["route", "--sandbox", "--trace", "Hello"]) == 0
    err = capsys.readouterr().err
    assert f", instead of {primary}, which failed" in err
    assert re.search(rf"model {primary} .* error: auth\n├─ fallback .* upstream_5xx, ", err)


# the prompt


@pytest.mark.parametrize("argv", [["-"], []])
def test_a_prompt_is_piped_in(argv: list[str], monkeypatch: Patch, capsys: Capture) -> None:
    sandbox(monkeypatch, answers=echo)
    feed(monkeypatch, "\ufeffgrüß Gott\r\n".encode())
    assert main(["route", "--sandbox", *argv]) == 0
    assert capsys.readouterr().out == "<grüß Gott>\n"


def test_a_prompt_comes_from_a_file(tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    sandbox(monkeypatch, answers=echo)
    (tmp_path / "p.txt").write_text("  two\nlines\n", "utf-8")
    main(["route", "--sandbox", f"@{tmp_path / 'p.txt'}"])
    assert capsys.readouterr().out == "<  two\nlines>\n"


@pytest.mark.parametrize(
    ("argv", "piped", "said"),
    [
        ([], b" \n", "is empty"),
        ([], b"caf\xe9", "not UTF-8"),
        (["@/nowhere/x"], b"", "cannot be read: No such file"),
        (["x", "--request", "y"], b"", "which excludes a prompt"),
        (["--request", "-"], b"{", "--request -: the body is not JSON"),
        (["--image", "x.png"], b"hi", "--image: 'x.png' is not a URL, and local files are not read; give https://"),
    ],
)
def test_a_missing_or_unreadable_prompt_is_refused(
    argv: list[str], piped: bytes, said: str, monkeypatch: Patch, capsys: Capture
) -> None:
    feed(monkeypatch, piped)
    assert main(["route", "--sandbox", *argv]) == 2
    assert said in capsys.readouterr().err


def test_nobody_waits_for_a_prompt_at_the_keyboard(monkeypatch: Patch, capsys: Capture) -> None:
    on_terminal(monkeypatch, "stdin")
    assert main(["route", "--sandbox"]) == 2
    assert "pipe it in" in capsys.readouterr().err


# the request


def test_options_make_the_request() -> None:
    argv = "route --goal quality --strategy quality-first --policy p --prefer e/f,g/h --prefer i/j --fallback a/b,c/d"
    argv += " --max-cost 0.5 --max-tokens 9 --reasoning low"
    argv += " --max-output-tokens 7 --timeout-ms 100 --metadata a=b=c --metadata d= --system Be --model a/b,c/d hi"
    assert request(*argv.split()) == RouteRequest(
        [Message("system", "Be"), Message("user", "hi")],
        goal="quality",
        strategy="quality-first",
        policy_id="p",
        models=["a/b", "c/d"],
        prefer=["e/f", "g/h", "i/j"],
        fallback=Fallback(["a/b", "c/d"]),
        budget=Budget(0.5, 9),
        params=Params(max_output_tokens=7, reasoning="low"),
        metadata={"a": "b=c", "d": ""},
        timeout_ms=100,
    )


def test_ignored_params_are_listed_on_stderr(tmp_path: Path, capsys: Capture) -> None:
    file = tmp_path / "r.json"
    file.write_text('{"messages":[{"role":"user","content":"x"}],"params":{"verbosity":"low","service_tier":"flex"}}')
    argv = ["route", "--sandbox", "--request", str(file), "--model"]
    assert main([*argv, "anthropic/claude-haiku-4-5"]) == 0
    assert "ignored  service_tier, verbosity, which the model does not support" in capsys.readouterr().err
    assert main([*argv, "openai/gpt-6-luna"]) == 0
    assert "ignored" not in capsys.readouterr().err


def test_a_prompt_an_image_and_no_fallback_are_fields_of_the_request() -> None:
    assert request("route", "hi") == RouteRequest([Message("user", "hi")])
    assert request("route", "--no-fallback", "hi").fallback == Fallback([])
    asked = request("decide", "what?", "--image", "https://a/b.png").messages
    assert asked == [Message("user", [TextPart("what?"), ImagePart(ImageUrl("https://a/b.png"))])]


def test_options_keep_other_fields_of_the_request(tmp_path: Path) -> None:
    file = tmp_path / "r.json"
    file.write_text('{"messages":[{"role":"user","content":"x"}],"budget":{"maxTokens":9000},"metadata":{"a":"1"}}')
    made = request("route", "--request", str(file), "--max-cost", "0.1", "--metadata", "b=2")
    assert made.budget == Budget(0.1, 9000)
    assert made.metadata == {"a": "1", "b": "2"}


def test_a_provider_means_its_models_without_free_offers() -> None:
    offers = {model.id for model in Router.sandbox().models() if model.free_tier}
    chosen = request("decide", "--provider", "google", "hi").models
    assert chosen
    assert all(model.startswith("google/") for model in chosen)
    assert any(offer.startswith("google/") for offer in offers)
    assert not offers & set(chosen)


# exit codes


def everything(kind: type[RouterError]) -> Iterator[type[RouterError]]:
    for child in kind.__subclasses__():
        yield child
        yield from everything(child)


def test_every_error_has_a_documented_exit_code() -> None:
    for kind in everything(RouterError):
        code = exit_code(kind("no"))
        assert code in EXIT_CODES, kind
        assert code, kind


def test_help_lists_every_exit_code(capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--help"])
    said = capsys.readouterr().out
    for code, meaning in EXIT_CODES.items():
        assert f"{code}  {meaning}" in said


@pytest.mark.parametrize(
    ("argv", "faults", "code"),
    [
        (["--max-cost", "0.0000001"], {}, 3),
        (["--policy", "nobody"], {}, 2),
        (["--catalogue", "/nowhere.toml"], {}, 2),
        ([], {"*": "refused"}, 4),
        ([], {"*": "auth"}, 5),
    ],
)
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_an_error_has_its_exit_code_and_one_message(
    argv: list[str], faults: dict[str, str], code: int, form: list[str], monkeypatch: Patch, capsys: Capture
) -> None:
    sandbox(monkeypatch, faults=faults)
    assert main(["route", "--sandbox", *argv, *form, "Hello"]) == code
    out, err = capsys.readouterr()
    assert err.startswith("routewright: ")
    assert err.count("\n") == 1
    assert not re.search(r"Traceback|Router\W|maxCostUsd|policy_id|timeout_ms", err), "the library's words"
    if not form:
        assert out == ""
        return
    error = json.loads(out)["error"]
    assert set(error) >= {"code", "message", "type", "request_id"}
    assert error["request_id"].startswith("req_")


def test_running_out_of_time_is_6(monkeypatch: Patch, capsys: Capture) -> None:
    async def never(call: UpstreamCall) -> str:
        await anyio.sleep_forever()
        raise AssertionError

    sandbox(monkeypatch, answers=never)
    assert main(["route", "--sandbox", "--timeout-ms", "20", "Hello"]) == 6
    assert "--timeout-ms=20" in capsys.readouterr().err


def test_a_failure_shows_the_attempts_and_a_refusal_the_models_over_budget(monkeypatch: Patch, capsys: Capture) -> None:
    assert main(["route", "--sandbox", "--explain", "--max-cost", "0.0000001", "Hello"]) == 3
    assert re.search(r"\d+  budget_cost  \S+ \$0\.0\d+", capsys.readouterr().err)
    sandbox(monkeypatch, faults={"*": "auth"})
    assert main(["route", "--sandbox", "--trace", "Hello"]) == 5
    assert len(re.findall(r"─ model \S+ .*error: auth", capsys.readouterr().err)) == 4


def test_without_a_provider_route_is_3_and_points_to_the_sandbox(capsys: Capture) -> None:
    assert main(["route", "Hello"]) == 3
    assert "add --sandbox" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "usage", "said"),
    [
        (["route", "--sandbx", "hi"], "usage: routewright route ", "--sandbx; did you mean --sandbox?"),
        (["catalogue", "import"], "usage: routewright catalogue import ", "\nroutewright catalogue import: error: the"),
        (["nonsense"], "usage: routewright ", "invalid choice: 'nonsense'"),
        (["traces", "lst"], "usage: routewright traces ", "; did you mean ls?"),
        (["route", "--max-cost", "much", "x"], "usage: routewright route ", "'much' is not a number, such as 0.1"),
        (["traces", "ls", "--since", "-7d"], "usage: ", "--since: expected a value that does not begin with '-'"),
        (["route", "--metadata", "x", "y"], "usage: routewright route ", "'x' is not KEY=VALUE"),
    ],
)
def test_a_wrong_option_is_answered_by_its_command(argv: list[str], usage: str, said: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(argv)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(usage)
    assert said in err


def test_no_command_shows_the_help(capsys: Capture) -> None:
    assert main([]) == 2
    assert "examples:" in capsys.readouterr().err


# streams and terminals


def test_a_restart_is_announced_on_a_terminal(monkeypatch: Patch, capsys: Capture) -> None:
    sandbox(monkeypatch, answers=breaks_once())
    on_terminal(monkeypatch, "stdout")
    assert main(["route", "--sandbox", "-q", "Hello"]) == 0
    out, err = capsys.readouterr()
    assert out == "half\nwhole answer\n"
    assert "starts over" in err


@pytest.mark.parametrize(("form", "code", "said"), [([], 0, "whole answer\n"), (["--stream"], 5, "half\n")])
def test_a_pipe_never_gets_an_answer_that_began_again(
    form: list[str], code: int, said: str, monkeypatch: Patch, capsys: Capture
) -> None:
    sandbox(monkeypatch, answers=breaks_once())
    assert main(["route", "--sandbox", *form, "-q", "Hello"]) == code
    assert capsys.readouterr().out == said


def breaks_once() -> Callable[[UpstreamCall], AsyncIterator[str]]:
    calls = []

    async def answer(call: UpstreamCall) -> AsyncIterator[str]:
        calls.append(call)
        if len(calls) == 1:
            yield "half"
            raise ProviderFault("reset")
        yield "whole "
        yield "answer"

    return answer


@pytest.mark.parametrize(("terminal", "shown"), [(True, "a[2Jb\tc\n"), (False, "a\x1b[2Jb\tc\x07\n")])
def test_an_answer_cannot_command_the_terminal(terminal: bool, shown: str, monkeypatch: Patch, capsys: Capture) -> None:
    sandbox(monkeypatch, answers={"x": "a\x1b[2Jb\tc\x07"})
    if terminal:
        on_terminal(monkeypatch, "stdout")
    main(["route", "--sandbox", "-q", "x"])
    assert capsys.readouterr().out == shown


def test_text_is_never_markup(monkeypatch: Patch, capsys: Capture) -> None:
    sandbox(monkeypatch, faults={"*": "refused"})
    on_terminal(monkeypatch, "stdout", "stderr")
    main(["route", "--sandbox", "--model", "[bold]x[/bold]:smile:/y", "Hello"])
    assert "[bold]x[/bold]:smile:/y" in capsys.readouterr().err


def test_only_prose_wraps(monkeypatch: Patch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("NO_COLOR", "1")
    table = Table([Row(("a", "1", "several words that do not fit"))], "name | >n |")
    assert render([Line("t"), table], _Terminal()) == "t\nname  n\na     1  several words that do not fit\n"
    wrapped = "t\nname  n\na     1  several words that do\n         not fit\n"
    assert render([Line("t"), table._replace(prose=True)], _Terminal()) == wrapped
    path = "/a-long/" * 20
    assert render([facts({"store": path})], _Terminal()) == f"store  {path}\n", "a path is never broken"


# decide


def test_decide_works_without_a_key_and_says_so(capsys: Capture) -> None:
    assert main(["decide", "Hello"]) == 0
    out, err = capsys.readouterr()
    assert "no provider is configured" in err
    assert err.count("\n") == 1
    assert out.startswith("goal=cost strategy=balanced: ")
    assert "chosen" in out


def test_decide_says_what_another_model_would_need(capsys: Capture) -> None:
    assert main(["decide", "--sandbox", "--why-not", "openai/gpt-4.1", "Hello"]) == 0
    out, _ = capsys.readouterr()
    assert str(Router.sandbox().why_not("Hello", "openai/gpt-4.1")) in out
    assert main(["decide", "--sandbox", "--json", "--why-not", "openai/gpt-4.1", "Hello"]) == 0
    told = json.loads(capsys.readouterr().out)["why_not"]
    assert (told["model"], told["place"] > 1, told["changes"][0]["what"]) == ("openai/gpt-4.1", True, "models")


def test_why_not_of_a_refused_request_names_options(capsys: Capture) -> None:
    assert main(["decide", "--sandbox", "--max-cost", "0", "--why-not", "openai/gpt-4.1", "Hello"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert re.search(r"Decision: none of \d+ models fits\n\n.*\n +\d+  budget_cost  \S+ \$0\.0\d+", err)
    assert "openai/gpt-4.1 is rejected by budget_cost; no model is chosen.\n" in err
    assert "\nTo be considered: raise --max-cost to" in err


# files


def test_policies_and_catalogue_come_from_files(tmp_path: Path, monkeypatch: Patch, capsys: Capture) -> None:
    models, policies = tmp_path / "models.toml", tmp_path / "policies.toml"
    models.write_text('[[models]]\nid = "own/one"\nlike = "openai/gpt-4o"\nprices = {input_usd = 1, output_usd = 2}\n')
    policies.write_text('[[policies]]\nname = "ours"\nmodels = ["own/one"]\ngoal = "quality"\n')
    files = ["--catalogue", str(models), "--policies", str(policies)]
    assert main(["route", "--sandbox", *files, "--policy", "ours", "--json", "Hello"]) == 0
    routing = json.loads(capsys.readouterr().out)["routing"]
    assert routing["selected_model"] == "own/one"
    assert routing["policy_version"].startswith("ours@")


# models


def test_models_lists_what_a_key_opens(monkeypatch: Patch, capsys: Capture) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    assert main(["models", "--json"]) == 0
    current = json.loads(capsys.readouterr().out)["models"]
    assert current
    assert {model["provider"] for model in current} == {"openai"}
    main(["models", "--json", "--all"])
    everything_known = json.loads(capsys.readouterr().out)["models"]
    assert len(everything_known) > len(current)


def test_models_warns_once_of_old_prices(tmp_path: Path, capsys: Capture, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "models.toml"
    path.write_text("as_of = 2020-01-01")
    assert main(["models", "--all", "--catalogue", str(path)]) == 0
    out, err = capsys.readouterr()
    assert "2020-01-01" not in out
    assert re.search(r"the prices are of 2020-01-01, \d+ days ago; renew them with 'routewright catalogue import", err)
    assert not caplog.records
    path.write_text(f"as_of = {datetime.now(UTC).date()}")
    main(["models", "--all", "--catalogue", str(path)])
    assert "days ago" not in capsys.readouterr().err


def test_models_are_filtered_by_provider_and_modality(capsys: Capture) -> None:
    main(["models", "--provider", "openai,google", "--modality", "image", "--modality", "tool"])
    rows = capsys.readouterr().out.splitlines()[1:]
    assert rows
    assert all(row.startswith(("openai/", "google/")) and "image, tool" in row for row in rows)


def test_a_model_of_a_local_server_is_shown_whole(monkeypatch: Patch, capsys: Capture) -> None:
    with LocalServer(ollama("llama3.2:latest")) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url)
        assert main(["models", "llama3.2", "--json"]) == 0
    card = json.loads(capsys.readouterr().out)
    assert (card["id"], card["status"], card["context_window"]) == ("ollama/llama3.2", "available", 131_072)
    monkeypatch.delenv("OLLAMA_HOST")
    assert main(["models", "ollama/llama3.2"]) == 2
    assert "unknown model 'ollama/llama3.2'; set OLLAMA_HOST to the address of the server\n" in capsys.readouterr().err
    assert {"not_supported": "tool_choice", "why": "not supported by ollama for this model"} in card["not_supported"]


def test_models_of_an_unknown_or_unconfigured_provider(monkeypatch: Patch, capsys: Capture) -> None:
    assert main(["models", "--provider", "opnai"]) == 2
    assert "did you mean 'openai'?" in capsys.readouterr().err
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    assert main(["models", "--provider", "google"]) == 0
    assert "--all" in capsys.readouterr().err


# streams that cannot be written or read


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "utf-16", "utf-8"])
def test_an_old_encoding_loses_nothing_of_json(encoding: str, monkeypatch: Patch) -> None:
    said, written = "é “quoted” 日本 😀 \\u00e9", encoded(monkeypatch, encoding)
    assert main(["route", "--sandbox", "--json", "--trace", "--metadata", f"said={said}", "Hello"]) == 0
    text = written.getvalue().decode(encoding)
    assert json.loads(text)["trace"]["metadata"] == {"said": said}
    assert ("é" in text) == encoding.startswith("utf"), "an encoding that lacks a character gets ASCII"


@pytest.mark.parametrize("argv", [["models", "--all", "--json"], ["route", "--sandbox", "Hello"]])
def test_a_broken_pipe_is_141_and_no_message(argv: list[str], monkeypatch: Patch, capsys: Capture) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as pipe:  # closing it raises if anything is left to write
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(argv) == 141
    assert "Pipe" not in capsys.readouterr().err


def test_a_pipe_that_broke_before_the_command_is_141(monkeypatch: Patch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as pipe:
        pipe.write("not flushed yet")
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(["models"]) == 141


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full disk to write to")
@pytest.mark.parametrize(
    "argv", [["models", "--all"], ["route", "--sandbox", "--json", "hi"], ["route", "--sandbox", "hi"]]
)
def test_a_full_disk_is_1_and_one_sentence(argv: list[str], monkeypatch: Patch, capsys: Capture) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(argv) == 1
    assert capsys.readouterr().err.endswith("routewright: cannot write the output: No space left on device\n")


@pytest.mark.parametrize(
    ("argv", "closed", "code", "out", "err"),
    [
        (["route", "--sandbox", "--explain", "hi"], ["stderr"], 0, "This is a canned answer", ""),
        (["route", "--sandbox", "-"], ["stdin"], 2, "", "routewright: prompt: is empty; give it as an argument"),
    ],
)
def test_a_closed_stream_acts_like_the_null_device(
    argv: list[str], closed: list[str], code: int, out: str, err: str, monkeypatch: Patch, capsys: Capture
) -> None:
    for name in closed:
        monkeypatch.setattr(sys, name, None)
    assert main(argv) == code
    said = capsys.readouterr()
    for text, begins in ((said.out, out), (said.err, err)):
        assert text.startswith(begins)
        assert bool(text) == bool(begins)


# as a process


def test_it_runs_as_a_module() -> None:
    done = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == (f"routewright {__version__}\n", "")


WITHOUT_RICH = """
import contextlib, io, json, sys
sys.modules["rich"] = None
from routewright.cli import main
for line in {lines!r}:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = main(line.split())
    if "--json" in line:
        json.loads(out.getvalue())
    print(code, line)
"""
COMMANDS = [
    "accounts create acme", "store check", "accounts ls", "accounts show acme", "accounts change acme --plan pro",
    "accounts credit acme 1", "keys create acme --name a", "keys ls acme", "incidents open slow", "incidents ls",
    "webhooks create acme https://hooks.example.com/in", "webhooks ls acme",
    "webhooks deliveries acme", "route --sandbox --explain --trace Hi", "agent --sandbox Hi", "decide --sandbox Hi",
    "models", "policies check policies.toml --sandbox", "traces ls", "traces show",
    "traces delete --everything --yes", "analytics usage", "analytics cache", "analytics fallback",
    "analytics latency", "ledger rows", "store retain", "store upgrade",
]  # fmt: skip


def test_every_command_works_without_rich(tmp_path: Path) -> None:
    (tmp_path / "policies.toml").write_text('[[policies]]\nname = "ours"\n')
    lines = [f"{command}{form}" for command in COMMANDS for form in (" --json", "")]
    lines.remove("accounts create acme")  # it is there
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_RICH.format(lines=[*lines, "serve --check"])],
        capture_output=True, text=True, timeout=120, cwd=tmp_path, env={**os.environ, "ROUTEWRIGHT_STORE": "s.db"},
        check=False,
    )  # fmt: skip
    assert done.stderr == ""
    assert [line for line in done.stdout.splitlines() if not line.startswith("0 ")] == []
    assert len(done.stdout.splitlines()) == len(lines) + 1


def test_help_does_not_load_the_library() -> None:
    code = "import sys; from routewright.cli import main\ntry: main(['--help'])\nfinally: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert not {"numpy", "routewright.router", "rich"} & set(done.stdout.split())


SLOW = """
import signal, sys
from functools import partial
import anyio
from routewright import Router
from routewright.cli import main

async def slowly(call):
    try:
        yield "one "
        await anyio.sleep_forever()
    finally:
        print("ended", file=sys.stderr)

Router.sandbox = partial(Router.sandbox, answers=slowly)
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent in the background may have it ignored
sys.exit(main(["route", "--sandbox", "--stream", "Hello"]))
"""


@pytest.mark.skipif(os.name == "nt", reason="there is no SIGINT for one process there")
def test_an_interrupt_ends_the_call_and_is_130() -> None:
    process = subprocess.Popen([sys.executable, "-c", SLOW], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(4) == b"one "
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
        assert process.stderr.read() == b"ended\n"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("environment", [{}, {"TERM": "dumb"}])
def test_no_column_is_lost_and_no_cell_cut(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    cells = ("模型" * 40, "😀" * 20, "x" * 90)
    terminal = _Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    Screen().show(Table([Row(cells, "bad")], "name | face | long"), facts({"prompt": "模型" * 60}))
    text = terminal.getvalue()
    assert ("\x1b[" in text) == (environment == {})
    assert re.sub(r"\x1b\[[\d;]*m", "", text).split() == ["name", "face", "long", *cells, "prompt", "模型" * 60]


def test_commands_leave_the_delivery_of_webhooks_to_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    made, sandbox = list[Any](), Router.sandbox

    def make(**options: Any) -> Router:
        made.append(options["settings"])
        return sandbox(**options)

    monkeypatch.setattr(Router, "sandbox", make)
    assert main(["route", "--sandbox", "Hi"]) == 0
    assert [settings.webhooks.deliver for settings in made] == [False]
