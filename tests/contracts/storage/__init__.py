"""Contract suites of storages. ``suites.py`` has those to inherit, ``samples.py`` makes sample data."""
