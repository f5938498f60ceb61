"""See what happens when models fail: a second try, another model, and the end of the chain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from routewright import Router, RouterError, Trace
from routewright.wire import ModelSpan

FIRST, SECOND = "openai/gpt-6-luna", "mistral/mistral-medium-2604"


def main() -> None:
    show("a fault that passes", {FIRST: ["rate_limited"]})
    show("a model that is down", {FIRST: "connect"})
    show("a key that is not accepted", {FIRST: "auth"})
    show("a prompt that the provider refuses", {FIRST: "refused"})
    show("everything is down", {"*": "server"})


def show(what: str, faults: Mapping[str, str | Sequence[str]]) -> None:
    """Call once, and list the attempts."""
    router = Router.sandbox(faults=faults)
    print(f"{what}:")
    try:
        answer = router.blocking.route("Hello", models=[FIRST, SECOND], fallback={"models": [SECOND]})
    except RouterError as error:
        if error.trace_id is not None:
            show_attempts(router.blocking.trace(error.trace_id))
        print(f"  {type(error).__name__}")
    else:
        show_attempts(answer.trace)
        print(f"  answered by {answer.routing.selected_model}")
    router.blocking.close()


def show_attempts(trace: Trace) -> None:
    for span in trace.spans:
        if isinstance(span, ModelSpan):
            print(f"  {span.attempt}. {span.model}: {span.error or span.finish_reason}")


if __name__ == "__main__":
    main()
