"""Executes what the core decides, over the protocols, with anyio. Read ``route.py`` first."""
