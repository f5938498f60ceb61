"""Models with their prices: what is bundled, and what users add."""
