"""Keep the rules in a file, and name them in requests."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from routewright import NoCandidates, Router
from routewright.policies import read_policies

POLICIES = """
[[policies]]
name = "support"
goal = "quality"
models = ["openai/gpt-5.4", "openai/gpt-6-luna", "anthropic/claude-haiku-5-5"]
budget = { max_cost_usd = 0.02 }

[[policies]]
name = "nightly"
strategy = "cost-optimized"
timeout_ms = 600000
"""


def main() -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "policies.toml"
        file.write_text(POLICIES, "utf-8")
        router = Router.sandbox(policies=read_policies(file))

    for policy in router.policies():
        answer = router.blocking.route("My parcel is late.", policy_id=policy.name)
        print(f"{answer.routing.policy_version}: {answer.routing.selected_model}")
    try:
        router.decide("My parcel is late.", policy_id="support", models=["openai/gpt-5.5-pro"])
    except NoCandidates as error:
        print(error)
    router.blocking.close()


if __name__ == "__main__":
    main()
