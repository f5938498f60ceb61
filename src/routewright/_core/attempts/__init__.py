"""Attempts, faults, circuits and health: from a plan to its answer. Pure."""
