"""Keep calls within a budget, and make more of a smaller one where it is too small."""

from __future__ import annotations

from routewright import BudgetExceeded, Router

QUESTION = "Explain how a bill becomes a law."


def main() -> None:
    router = Router.sandbox()
    for limit_usd in (0.1, 0.01, 0.001, 0.00001):
        try:
            answer = router.blocking.route(QUESTION, goal="quality", budget={"maxCostUsd": limit_usd})
        except BudgetExceeded as error:
            print(f"${limit_usd}: nobody; {error.detail['suggestion']}")
            continue
        cap = answer.decision.output_cap
        print(f"${limit_usd}: {answer.routing.selected_model}, at most {cap} tokens of output")
        assert answer.routing.cost_usd <= limit_usd
    router.blocking.close()


if __name__ == "__main__":
    main()
