"""Agent runs: the rules (contract 10)."""
