"""Additions built on the public surface: OpenTelemetry, vendors' SDKs, frameworks."""
