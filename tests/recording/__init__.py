"""Scripts that wrote ``tests/data/old_store`` and ``tests/data/decisions`` with version 0.1.0. Tests never run them."""
