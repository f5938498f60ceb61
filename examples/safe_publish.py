"""Try a policy on past requests, publish it to some users, and take it back."""

from __future__ import annotations

from collections import Counter

from routewright import CallableProvider, Console, MemoryStorage, Model, Policy, Pricing, Router

LARGE = Model(id="mine/large", quality=0.9, pricing_per_1m=Pricing(2.0, 8.0), context_window=100_000)
SMALL = Model(id="mine/small", quality=0.7, pricing_per_1m=Pricing(0.2, 0.8), context_window=100_000)


def serve(router: Router, requests: int) -> None:
    """Answer the requests of forty users, and print which version answered how many."""
    versions: Counter[str] = Counter()
    for number in range(requests):
        metadata = {"user": f"user-{number % 40}"}
        answer = router.blocking.route("Where is my parcel?", policy_id="support", metadata=metadata)
        versions[answer.routing.policy_version] += 1
    print(dict(versions))


def main() -> None:
    storage = MemoryStorage()
    provider = CallableProvider(lambda call: "word " * 250, name="mine", models=[LARGE, SMALL])
    console = Console(storage).blocking
    console.policies.draft(Policy(name="support", goal="quality"), by="ada")
    console.policies.publish("support", by="ada")
    with Router(providers=[provider], storage=storage).blocking as router:
        serve(router.router, 60)

    console.policies.draft(Policy(name="support", strategy="cost-optimized"), by="ada")
    for change in console.policies.diff("support").differences:
        print(f"{change.path}: {change.before} -> {change.after}")
    report = console.simulate("support", since="1d")
    if report.cost_change is None or report.cost_change.high > 0.05:
        print(f"not published: {report.problem or 'it may cost over 5 % more'}")
        return
    print(f"cost {report.cost_change.value:+.0%}, at most {report.cost_change.high:+.0%}")

    console.policies.publish("support", share=0.25, share_by="metadata.user", by="ada")
    with Router(providers=[provider], storage=storage).blocking as router:
        serve(router.router, 120)
    print(f"back to {console.policies.roll_back('support', by='ada').label}")


if __name__ == "__main__":
    main()
