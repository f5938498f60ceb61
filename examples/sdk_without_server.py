"""Use OpenAI's and Anthropic's SDKs with a Router of the same process: no server, no key."""

from __future__ import annotations

import asyncio
from typing import Any

from anthropic import Anthropic
from openai import APIStatusError, AsyncOpenAI

from routewright import Router
from routewright.integrations.sdk import router_client

QUESTION: Any = [{"role": "user", "content": "Why is the sky blue?"}]


async def ask(router: Router) -> None:
    client = AsyncOpenAI(http_client=router_client(router), api_key="-")
    with router.tags(team="weather"):
        answer = await client.chat.completions.create(model="auto:quality", messages=QUESTION)
        print(f"{answer.model}: {answer.choices[0].message.content}")
        async for chunk in await client.chat.completions.create(model="auto", messages=QUESTION, stream=True):
            for choice in chunk.choices:
                print(choice.delta.content or "", end="", flush=True)
    print()
    try:
        limits = {"routewright": {"budget": {"maxCostUsd": 0.000001}}}
        await client.chat.completions.create(model="auto", messages=QUESTION, extra_body=limits)
    except APIStatusError as error:
        print(f"{error.status_code}: {error.code}")
    for trace in (await router.traces.query()).data:
        print(f"  {trace.status:10} ${trace.cost_usd:.6f} {trace.metadata}")


def main() -> None:
    router = Router.sandbox(answers={"Why is the sky blue?": "Air scatters blue light most."})
    asyncio.run(ask(router))
    plain = Anthropic(http_client=router_client(router.blocking), api_key="-")
    message = plain.messages.create(model="auto", max_tokens=100, messages=QUESTION)
    print(f"{message.model}: {[part.text for part in message.content if part.type == 'text']}")
    router.blocking.close()


if __name__ == "__main__":
    main()
