"""Windows of rate limits."""
