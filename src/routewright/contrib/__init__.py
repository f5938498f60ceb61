"""Additions built on the public surface: price lists, notebook pages, OpenTelemetry."""
