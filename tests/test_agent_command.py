"""``routewright agent``: the answer on standard output, the steps beside it, and an exit code for each outcome."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from routewright import CallableProvider, Delta, Finish, Model, Pricing, Router, UpstreamCall, Usage
from routewright.cli import main
from routewright.cli.command import EXIT_CODES
from routewright.wire import Chunk, ToolDelta

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch

pytestmark = pytest.mark.usefixtures("noon")

TOOLS = '''
def order_status(order: int) -> str:
    """The status of an order."""
    return f"order {order} is shipped"


async def wait(seconds: float) -> str:
    """Wait."""
    import anyio

    await anyio.sleep(seconds)
    return "waited"
'''


def agent(*argv: str) -> int:
    return main(["agent", "--sandbox", *argv])


def obey(call: UpstreamCall) -> Iterator[Chunk]:
    """Call the tool that the task names, with the arguments after it; then say what it said."""
    last = call.messages[-1]
    assert isinstance(last.content, str)
    name, _, arguments = last.content.partition(" ")
    if last.role == "tool" or name not in {tool.function_spec.name for tool in call.tools or ()}:
        yield from (Delta(f"<{last.content}>"), Usage(120, 12), Finish("stop"))
        return
    yield from (ToolDelta(0, arguments or "{}", "call_1", name), Usage(100, 20), Finish("tool_calls"))


@pytest.fixture(autouse=True)
def _obedient(monkeypatch: Patch, tmp_path: Path) -> Iterator[None]:
    answer_with(monkeypatch, answers=obey)
    (tmp_path / "mytools.py").write_text(TOOLS)
    path = [*sys.path]
    yield
    sys.path[:] = path
    sys.modules.pop("mytools", None)


def answer_with(monkeypatch: Patch, **given: Any) -> None:
    """Let ``--sandbox`` mean these answers or faults."""
    monkeypatch.setattr(Router, "sandbox", partial(_SANDBOX, **given))


_SANDBOX = Router.sandbox


# what goes where


def test_the_answer_goes_to_stdout_and_the_steps_to_stderr(capsys: Capture) -> None:
    assert agent("--tool", "calculator", 'calculator {"expression": "6 * 7"}') == 0
    out, err = capsys.readouterr()
    assert out == "<42>\n"
    assert err.startswith("run tr_")
    assert "  2  calculator(6 * 7) -> 42" in err
    assert "status  completed" in err


def test_system_replaces_the_system_prompt(monkeypatch: Patch, capsys: Capture) -> None:
    answer_with(monkeypatch, answers=lambda call: str(call.messages[0].content))
    assert agent("--system", "Be brief.", "hello") == 0
    assert capsys.readouterr().out == "Be brief.\n"


def test_a_conversation_is_remembered_in_the_store(monkeypatch: Patch, capsys: Capture) -> None:
    answer_with(monkeypatch, answers=lambda call: ", ".join(str(each.content) for each in call.messages[1:]))
    for task in ("one", "two"):
        assert agent("--store", "runs.db", "--conversation", "c", task) == 0
    assert capsys.readouterr().out == "one\none, one, two\n"
    assert agent("--conversation", "c", "one") == 2
    assert "--conversation: needs a store" in capsys.readouterr().err


# exit codes


@pytest.mark.parametrize("form", [[], ["--json"]])
@pytest.mark.parametrize(
    ("options", "kind", "code", "said"),
    [
        (["--max-steps", "1", "--tool", "calculator"], None, 9, ""),
        ([], "auth", 5, "the run failed:"),
        ([], "refused", 4, "the run failed:"),
    ],
)
def test_the_exit_code_says_how_the_run_ended(
    form: list[str], options: list[str], kind: str | None, code: int, said: str, monkeypatch: Patch, capsys: Capture
) -> None:
    if kind is not None:
        answer_with(monkeypatch, faults={"*": kind})
    assert agent(*form, *options, "calculator {}") == code
    assert code in EXIT_CODES
    out, err = capsys.readouterr()
    assert said in err
    if form:
        assert json.loads(out)["status"] != "completed"


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_run_whose_budget_is_spent_exits_with_3(form: list[str], monkeypatch: Patch, capsys: Capture) -> None:
    model = Model(id="standin/one", quality=0.5, pricing_per_1m=Pricing(1.0, 4.0), context_window=32_000)
    provider = CallableProvider(obey, models=[model])
    monkeypatch.setattr("routewright.cli.route.Router", partial(Router, providers=[provider]))
    assert main(["agent", *form, "--max-cost", "0.000001", "hello"]) == 3
    out, err = capsys.readouterr()
    assert "routewright: the run failed: " in err
    if form:
        assert json.loads(out)["status"] == "budget_exceeded"


def test_the_trace_shows_what_each_call_cost(capsys: Capture) -> None:
    task = 'calculator {"expression": "6 * 7"}'
    assert agent("--tool", "calculator", "--trace", task) == 0
    err = capsys.readouterr().err
    assert re.search(r"├─ step llm_call .*\n│  └─ sub_trace \S+ .*, \$0\.0", err)
    assert "tool calculator" in err
    assert agent("--tool", "calculator", "--trace", "--json", task) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["trace"]["id"] == body["trace_id"]


# tools


def test_a_function_of_a_module_in_the_folder_is_a_tool(capsys: Capture) -> None:
    assert agent("--tool", "mytools:order_status", 'order_status {"order": 7}') == 0
    assert capsys.readouterr().out == "<order 7 is shipped>\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--tool", "mytools.order_status"],
            "--tool: 'mytools.order_status' is not a built-in tool; write your own function as mytools:order_status",
        ),
        (["--tool", "leaves:x"], "--tool: importing 'leaves' raised SystemExit: 3"),
        (
            ["--tool", "mytools:order_statu"],
            "--tool: 'mytools' has no function 'order_statu'; did you mean 'order_status'?",
        ),
        (["--tool", "code_exec"], "--tool: code_exec needs a sandbox; give --code monty"),
        (["--search", "nowhere"], "--search: "),
        (["--max-steps", "0"], "--max-steps: must be"),
    ],
)
def test_a_wrong_option_is_one_line(options: list[str], said: str, capsys: Capture) -> None:
    Path("leaves.py").write_text("raise SystemExit(3)")
    assert agent(*options, "hello") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"routewright: {said}")
    assert err.count("\n") == 1


def test_web_search_needs_an_engine_outside_the_sandbox(capsys: Capture) -> None:
    assert main(["agent", "--tool", "web_search", "hello"]) == 2
    assert "--tool: web_search needs a search engine; give --search" in capsys.readouterr().err
    assert agent("--tool", "web_search", 'web_search {"query": "x"}') == 0
    assert "About x" in capsys.readouterr().out


def test_code_runs_in_the_sandbox_that_is_named(capsys: Capture) -> None:
    pytest.importorskip("pydantic_monty")
    assert agent("--code", "monty", "code_exec " + json.dumps({"code": "print(6 * 7)"})) == 0
    assert '"output":"42\\n"' in capsys.readouterr().out


def test_search_asks_the_server_that_is_named(capsys: Capture) -> None:
    assert agent("--search", "http://127.0.0.1:9", 'web_search {"query": "x"}') == 0
    assert "the search with SearXNG failed" in capsys.readouterr().out


# resuming


def test_resuming_makes_no_store(capsys: Capture) -> None:
    assert agent("--resume", "tr_none", "--store", "nope.db") == 2
    assert capsys.readouterr().err.startswith("routewright: there is no store ")
    assert not Path("nope.db").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
def test_an_interrupted_run_says_how_to_resume_it(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "run.py").write_text(
        f"import signal\nimport sys\nsys.path[:0] = {sys.path!r}\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a background job of a shell ignores it
        "from functools import partial\n"
        "from tests.test_agent_command import Router, obey, main\n"
        "Router.sandbox = partial(Router.sandbox, answers=obey)\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    command = [sys.executable, str(tmp_path / "run.py")]
    options = ["agent", "--sandbox", "--store", "runs.db", "--tool", "mytools:wait"]
    options += ['wait {"seconds": 25}']
    run = subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    assert run.stderr is not None
    trace_id = run.stderr.readline().removeprefix("run ").strip()
    while "wait ..." not in run.stderr.readline():
        pass
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=30)
    assert run.returncode == 130
    said = f"resume with: routewright agent --resume {trace_id} --store runs.db --tool mytools:wait --sandbox"
    assert said in err.splitlines()
    (tmp_path / "mytools.py").write_text(TOOLS.replace("sleep(seconds)", "sleep(0)"))
    resumed = shlex.split(said.removeprefix("resume with: routewright "))
    assert main(resumed) == 0
    assert capsys.readouterr().out == "<waited>\n"


# its trace


def test_show_has_the_models_steps_tokens_and_money_of_a_run(capsys: Capture) -> None:
    options = ("--store", "runs.db", "--tool", "calculator", "--metadata", "team=x", "--goal", "quality")
    assert agent(*options, "--json", 'calculator {"expression": "6 * 7"}') == 0
    trace_id = json.loads(capsys.readouterr().out)["trace_id"]
    assert main(["traces", "show", trace_id, "--store", "runs.db"]) == 0
    page = capsys.readouterr().out
    told = dict(line.split(maxsplit=1) for line in page.splitlines() if line[:1].islower() and len(line.split()) > 1)
    assert "model" not in told
    model = told["models"]
    assert (told["steps"], told["tokens"], told["metadata"]) == ("3", "220 in, 32 out", "team  x")
    assert told["goal"] == "quality"
    tree = [" ".join(line.lstrip("├└│─ ").split()[:2]) for line in page.splitlines() if "─ " in line]
    asked = (f"sub_trace {model}", "decision", f"model {model}")
    assert ["decision" if each.startswith("decision") else each for each in tree] == [
        *("step llm_call", *asked),
        *("step tool_call", "tool calculator"),
        *("step llm_call", *asked),
    ]
    assert "Decision" not in page


def test_the_words_of_a_model_forge_no_lines(monkeypatch: Patch, capsys: Capture) -> None:
    forged = "look\n  9  answers, $0 spent\x1b[2J\u202e\u2028tool"

    def forge(call: UpstreamCall) -> Iterator[Chunk]:
        if call.messages[-1].role == "tool":
            yield from (Delta("red \x1b[31m\u2028line"), Usage(9, 9), Finish("stop"))
        else:
            yield from (ToolDelta(0, f'{{"a": "{forged[:4]}\\nb"}}', "c1", forged), Usage(9, 9), Finish("tool_calls"))

    answer_with(monkeypatch, answers=forge)
    agent("--tool", "calculator", "hi")
    lines = capsys.readouterr().err.splitlines()
    assert not [line for line in lines if line.startswith("  9")]
    assert all(line.isprintable() for line in lines)
