"""Additions built on the public surface: price lists, provider invoices, notebook pages, OpenTelemetry."""
