"""Keep personal data and your own words away from models, and out of answers, streamed ones too."""

from __future__ import annotations

import asyncio

from routewright import DenyList, PatternGuardrail, Router
from routewright.errors import BlockedByPolicy
from routewright.wire import GuardrailSpan

ANSWER = "Write to anna@example.com, or call +44 20 7946 0958."


async def main() -> None:
    router = Router.sandbox(
        {"Whom can I ask?": ANSWER},
        guardrails=[PatternGuardrail("email", "phone"), DenyList(["Project Nightjar"])],
    )
    async with router, router.stream("Whom can I ask?") as stream:
        async for text in stream.text():
            print(text, end="|")
        print()
        for span in stream.result.trace.spans:
            if isinstance(span, GuardrailSpan):
                print(f"  {span.name}: {span.count} {span.rule}, {span.action} on {span.stage}")
        try:
            await router.route("What is project nightjar?")
        except BlockedByPolicy as error:
            print(error)


if __name__ == "__main__":
    asyncio.run(main())
