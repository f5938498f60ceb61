"""Additions built on the public surface: price lists, OpenTelemetry."""
