"""Serve a model with a function, beside others: here a table of questions that nobody need pay for."""

from __future__ import annotations

from collections.abc import AsyncIterator

from routewright import CallableProvider, Model, Pricing, ProviderFault, Router, UpstreamCall
from routewright.testing import ScriptedProvider
from routewright.wire import Chunk, Delta, Finish, Usage

ANSWERS = {"When are you open?": "From nine to five.", "Where are you?": "In the harbour."}

FREE = Model(id="local/table", quality=0.6, context_window=4_000, pricing_per_1m=Pricing(0.0, 0.0))
PAID = Model(id="vendor/large", like="openai/gpt-5.4", pricing_per_1m=Pricing(2.0, 8.0))


async def look_up(call: UpstreamCall) -> AsyncIterator[Chunk]:
    """Answer what is in the table; leave the rest to the next model."""
    question = str(call.messages[-1].content)
    answer = ANSWERS.get(question)
    if answer is None:
        raise ProviderFault("request", "not in the table")  # callers see this, so without the question
    yield Delta(answer)
    yield Usage(input=len(question.split()), output=len(answer.split()))
    yield Finish("stop")


def main() -> None:
    vendor = ScriptedProvider(lambda call: "Let me think about that.", models=[PAID])  # stands for a real one
    router = Router(providers=[CallableProvider(look_up, models=[FREE]), vendor])
    for question in ("When are you open?", "What is love?"):
        answer = router.blocking.route(question)
        print(f"{question} {answer.output} ({answer.routing.selected_model}, ${answer.routing.cost_usd:.6f})")
    router.blocking.close()


if __name__ == "__main__":
    main()
