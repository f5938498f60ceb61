"""One Router for a program of plain functions and threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from routewright import Router

CITIES = ("Lima", "Oslo", "Accra", "Hanoi", "Quito", "Turin")


def main() -> None:
    with Router.sandbox(answers=lambda call: f"It is sunny: {call.messages[-1].content}").blocking as router:

        def ask(city: str) -> str:
            return router.route(f"How is the weather in {city}?").output

        with ThreadPoolExecutor(max_workers=3) as pool:
            for said in pool.map(ask, CITIES):
                print(said)


if __name__ == "__main__":
    main()
