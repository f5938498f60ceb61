"""Guardrails: detectors, verdicts, and the gates that apply them."""
