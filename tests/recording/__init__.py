"""The script that wrote ``tests/data/decisions`` with version 0.1.0. Tests never run it."""
