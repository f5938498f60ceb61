"""Obeys the core over the protocols, with anyio. Read ``route.py`` first."""
