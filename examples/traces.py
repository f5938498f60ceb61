"""Keep traces in a file, look for some of them after a restart, and see what they add up to."""

from __future__ import annotations

import tempfile
from pathlib import Path

from routewright import Router, SqliteStorage, TraceStore


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "traces.db"
        router = Router.sandbox(storage=SqliteStorage(path), faults={"openai/gpt-5.4": "server"})
        for team in ("search", "ads", "search"):
            options = ["openai/gpt-5.4", "openai/gpt-5.2"]
            router.blocking.route("Hello", models=options, goal="quality", metadata={"team": team, "tenant": "acme"})
        router.blocking.close()

        traces = TraceStore(f"sqlite:///{path}").blocking
        for item in traces.query(filter="metadata.team=search,fallback_used=true").data:
            print(item.selected_model, item.cost_usd, item.metadata)
        usage = traces.usage(group_by="tenant")
        print([(row.group, row.requests, row.cost_usd) for row in usage.data])
        print(traces.fallback_report().reasons)
        traces.close()


if __name__ == "__main__":
    main()
