"""What does a model object add in its framework: to a call, and to an agent's run of 8 model calls and 7 tool calls?

The floor is the same by a model of the framework that answers at once. Processor time, by turns, in a process each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.frameworks import install

from .measure import Effort, Figure
from .report import Question, Report

ROOT = Path(__file__).parent.parent
NAMES = {
    "google_adk": "Google ADK",
    "langchain": "LangChain",
    "openai_agents": "OpenAI Agents SDK",
    "pydantic_ai": "pydantic-ai",
}
APART = ("google_adk", "langchain")
"""Not installed beside the others."""
WHAT = {"call": "a call", "agent": "an agent's run"}
TARGETS = {"agent": "1.15 × the floor"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NAMES)
def test_model_object(name: str, effort: Effort, report: Report) -> None:
    environment = dict(os.environ)
    if name in APART:
        environment["PYTHONPATH"] = os.pathsep.join([str(install()), os.environ.get("PYTHONPATH", "")])
    rounds = 50 if effort.runs > 1 else 1
    command = [sys.executable, "-m", f"benchmarks.frameworks.{name}", str(rounds)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2_000:]
    figures: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    for what, (floor, ours) in figures.items():
        question = Question(f"{WHAT[what]} of {NAMES[name]} with our model object, CPU", TARGETS.get(what, ""))
        report.add(question, "floor", Figure("µs", floor))
        report.add(question, "routewright", Figure("µs", ours))
