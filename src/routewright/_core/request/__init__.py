"""Reads a request: strict JSON, types, rules, and what an error says."""
