"""Additions built on the public surface: OpenTelemetry."""
