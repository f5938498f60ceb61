"""Storages: memory, SQLite and PostgreSQL."""
