"""What models answer in the tests of frameworks: a script for each row of the table in the docs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from routewright import Model, Pricing, ProviderFault, Router
from routewright.testing import ScriptedProvider
from routewright.wire import Delta, Finish, Thought, ToolDelta, Usage

ROWS = (
    "plain", "stream", "tools", "parallel_tools", "structured", "image", "thoughts", "cancel", "budget_refusal",
    "rescue_midway", "usage",
)  # fmt: skip
"""Each framework's test module has a ``test_<row>`` for each (``test_table.py``)."""

PLAIN = [Delta("Air scatters "), Delta("blue light."), Usage(12, 5, cached=4), Finish("stop")]
TOOL = [ToolDelta(0, '{"city":', "call_1", "weather"), ToolDelta(0, '"Rome"}'), Usage(20, 8), Finish("tool_calls")]
TOOLS = [
    ToolDelta(0, '{"city":"Rome"}', "call_1", "weather"),
    ToolDelta(1, '{"city":"Oslo"}', "call_2", "weather"),
    Usage(20, 16),
    Finish("tool_calls"),
]
STRUCTURED = [Delta('{"city":"Rome",'), Delta('"degrees":21}'), Usage(15, 9), Finish("stop")]
SIGNED = {"type": "thinking", "thinking": "Light scatters.", "signature": "c2lnbmVk"}
THOUGHTS = [Thought("Light scatters.", SIGNED), *PLAIN[:2], Usage(12, 9, reasoning=4), Finish("stop")]
FAULT = ProviderFault("server", status=503)
RESCUED: Sequence[Any] = [FAULT, FAULT, PLAIN]
"""The first model fails, also when it is tried again, and the next one answers."""
BROKEN = [Delta("Air scat"), FAULT]
"""Fails after its first text: a plain call is rescued by the next model, a stream ends in an error."""


def router_of(script: Any, **router_options: Any) -> tuple[Router, ScriptedProvider]:
    """A Router over two models of one scripted provider. Input costs $1 and output $2 for a million tokens."""
    price = Pricing(1.0, 2.0)
    models = [
        Model(
            id=f"anthropic/{name}",
            quality=quality,
            context_window=200_000,
            max_output_tokens=8_000,
            modalities=("text", "image", "tool", "file"),
            structured_output=True,
            reasoning=True,
            pricing_per_1m=price,
        )
        for name, quality in (("one", 0.9), ("two", 0.8))
    ]
    provider = ScriptedProvider(script, models=models)
    return Router(providers=[provider], **router_options), provider
