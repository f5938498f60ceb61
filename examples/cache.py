"""Answers repeated and similar questions from the cache, with a bound on wrong ones."""

from __future__ import annotations

import asyncio

from routewright import Router

QUESTIONS = [
    "How do I reset my password?",
    "How do I reset my password?",
    "how can I reset my password",
    "How do I delete my password?",  # an opposite never shares an answer
]


async def main() -> None:
    async with Router.sandbox(answers=lambda call: f"About: {call.messages[-1].content}") as router:
        for question in QUESTIONS:
            # threshold= is the similarity from which an answer is shared; max_error= bounds the wrong ones instead
            answer = await router.route(question, cache={"threshold": 0.8})
            print(f"{question:30}", answer.headers["X-Routewright-Cache"])
        report = await router.traces.cache_report(environment="sandbox")
        print(f"hit rate {report.hit_rate:.0%}")


if __name__ == "__main__":
    asyncio.run(main())
