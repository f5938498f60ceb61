"""Take a decision again from its trace, and see what another goal would have chosen."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from routewright import Router, Trace


def main() -> None:
    router = Router.sandbox()
    answer = router.blocking.route("Compare Kant and Hume in three sentences.", goal="quality")

    stored = msgspec.json.encode(answer.trace)  # as a log or database would keep it
    trace = msgspec.json.decode(stored, type=Trace)
    decision = router.replay(trace)
    assert decision.digest == answer.decision.digest
    print(f"then and now: {decision.model}")

    for goal in ("cost", "stability"):
        other = router.replay(replace(decision.input, goal=goal))
        print(f"with the goal {goal}: {other.model}")
    router.blocking.close()


if __name__ == "__main__":
    main()
