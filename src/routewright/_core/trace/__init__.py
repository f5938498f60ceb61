"""Traces: ids, spans in their stored form, and filters."""
