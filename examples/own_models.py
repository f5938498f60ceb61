"""Put models, prices and short names of your own over the catalogue."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from routewright import Catalogue, Router

MODELS = """
disabled = ["openai/gpt-5.5-pro"]

[[models]]
id = "vllm/support-8b"
like = "groq/openai/gpt-oss-20b"
prices = { input_usd = 0.05, output_usd = 0.05 }

[prices."openai/gpt-6-luna"]
input_usd = 0.08
output_usd = 0.4
tiers = [{ above_tokens = 272_000, input_usd = 0.16, output_usd = 0.6 }]

[aliases]
house = "vllm/support-8b"
"""


def main() -> None:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "models.toml"
        file.write_text(MODELS, "utf-8")
        catalogue = Catalogue.load(file)
    router = Router.sandbox(catalogue=catalogue)
    decision = router.decide("Hello", models=["house", "openai/gpt-6-luna"], strategy="cost-optimized")
    print(router.explain(decision).partition("\n\nfallbacks")[0])


if __name__ == "__main__":
    main()
