"""Read prompts, give some of them other rules, and try another good model now and then."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from routewright import Router, Settings
from routewright.policies import read_policies

POLICIES = """
[[policies]]
name = "desk"
goal = "cost"
explore_models = 0.02

[[policies.classes]]
name = "code"
match = { topic = "code" }
goal = "quality"
models = ["openai/*", "anthropic/*"]

[[policies.classes]]
name = "hard"
match = { difficulty = ">0.6" }
goal = "quality"
"""
PROMPTS = (
    "Where is my parcel?",
    "I was charged twice for my card, please refund one payment.",
    "Write a Python function that reverses a linked list.",
    "Find the number of ordered pairs (a, b) of integers with a^2 + b^2 = 2025.",
    "Wie kann ich meine Bestellung stornieren?",
)


def main() -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "policies.toml"
        file.write_text(POLICIES, "utf-8")
        router = Router.sandbox(policies=read_policies(file), settings=Settings(predictor="built-in"))

    for prompt in PROMPTS:
        decision = router.blocking.route(prompt, policy_id="desk").decision
        reading = decision.reading
        assert reading is not None
        print(prompt)
        print(f"  {reading.topic}, difficulty {reading.difficulty:.2f}, novelty {reading.novelty:.2f}")
        rules = f"class {reading.policy_class}" if reading.policy_class else "the policy's own rules"
        print(f"  {rules}: {decision.model}{', explored' if decision.input.explored else ''}")
    router.blocking.close()


if __name__ == "__main__":
    main()
