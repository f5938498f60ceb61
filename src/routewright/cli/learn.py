"""The command ``learn``: fits a quality head to an account's traces, and applies or reverts it."""

from __future__ import annotations

from argparse import Namespace
from typing import get_args

from routewright.learning import LearnReport
from routewright.trace import TraceStore
from routewright.wire import Environment

from .command import DISAGREES, Parser, add, add_json
from .show import Block, Line, Screen, about, facts, picked
from .store import WHEN, add_place, existing_store, when

MOVED = 4
"""The number of models shown, starting with those the head changes most."""


def add_learn(command: Parser) -> None:
    """Add the options of ``learn``."""
    command.performs(_learn)
    does = command.add_mutually_exclusive_group()
    add(does, "--evaluate", "say what would be learned, and change nothing (the default)", action="store_true")
    add(does, "--apply", "route by it, if it beats the built-in predictor on held-out traces", action="store_true")
    add(does, "--revert", "go back to what was applied before", action="store_true")
    add(command, "--since TIME", f"only from traces since then: {WHEN}")
    add_place(command)
    add(command, "--account NAME", "whose they are (default: default)", default="default")
    where = "only traces of this one (default: production)"
    add(command, "--environment", where, choices=get_args(Environment), default="production")
    add_json(command)


async def _learn(args: Namespace, screen: Screen) -> int | None:
    """Learn from an account's own traffic how good models are there.

    Traces have sketches of their prompts where the setting learning is on. Exit code 1: --apply, and it is not better.
    """
    whose = picked(args, "account environment")
    async with TraceStore(existing_store(args)) as store:
        if args.revert:
            head = await store.revert_head(**whose)
            by = "the built-in predictor alone" if head is None else f"head {head.id}"
            screen.report({"head": None if head is None else head.id}, Line(f"{args.account} is routed by {by}"))
            return None
        report = await store.learn(**whose, since=when(args.since))
        if report.refusal:
            lack = "" if report.samples else f": none of {args.account} in {args.environment} has a sketch, so far"
            end = Line(f"not taken: {report.refusal}{lack}", "bad")
        elif args.apply:
            await store.apply_head(report)
            end = Line("applied: all processes take it within 5 s", "good")
        else:
            end = Line("it may be taken: give --apply", "dim")
    screen.report(report, _page(report), end)
    return DISAGREES if args.apply and report.refusal else None


def _page(report: LearnReport) -> Block:
    said = {"samples": ", ".join(f"{count:,} of {source}" for source, count in report.samples.items()) or "none"}
    if report.head is not None:
        told = report.head.figures
        moves = sorted(((move[0], model) for model, move in report.head.models.items()), key=lambda each: -abs(each[0]))
        said |= {
            "error": f"{told.shipped_log_loss:.4f}, with the head {told.log_loss:.4f} (log-loss of held-out answers)",
            "gain": f"{told.gain:.4f} ± {told.gain_error:.4f}, on {told.traces:,} traces",
            "moved most": ", ".join(f"{model} by {move:+.2f}" for move, model in moves[:MOVED]) + " (log-odds)",
            "decisions": f"{report.changed:,} of {report.replayed:,} change",
            "expected cost": f"{about(report.cost_usd)}, with the head {about(report.head_cost_usd)}",
            "predicted quality": f"{report.quality:.4f}, with the head {report.head_quality:.4f}",
        }
    return facts(said)
