"""What guardrails look for, what they say, and what passes."""
