"""Ids of traces, and how they are selected and paged."""
