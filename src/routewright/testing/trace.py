"""An assertion on traces that reports every difference."""

from __future__ import annotations

from typing import Any

from routewright._engine.answer import Answer
from routewright.wire import ModelSpan, Trace
from routewright.wire.problems import did_you_mean

_NAMES = [*Trace.__struct_fields__, "model", "provider", "attempts"]


def assert_trace(of: Trace | Answer[Any], **expected: Any) -> Trace:
    """Check the trace of a call, given the trace or its answer, and return it.

        assert_trace(answer, status="completed", selected_model="test/one", spans=["decision", "model"])

    Names are those of ``Trace``; ``spans`` is the list of their types, and ``attempts`` that of the models called, both
    in order. Raises ``AssertionError`` with every difference, and ``TypeError`` for an unknown name.
    """
    __tracebackhide__ = True  # by pytest
    for name in expected:
        if name not in _NAMES:
            raise TypeError(f"a trace has no {name!r}: {did_you_mean(name, _NAMES) or ', '.join(_NAMES)}")
    trace = of if isinstance(of, Trace) else of.trace
    lists: dict[str, Any] = {
        "spans": [span.type for span in trace.spans],
        "attempts": [span.model for span in trace.spans if isinstance(span, ModelSpan)],
    }
    wrong = [
        f"  {name}: expected {value!r}, got {actual!r}"
        for name, value in expected.items()
        if (actual := lists[name] if name in lists else getattr(trace, name)) != value
    ]
    if wrong:
        raise AssertionError("\n".join([f"trace {trace.id} is not as expected:", *wrong]))
    return trace
