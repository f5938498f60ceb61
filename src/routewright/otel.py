"""The former place of ``routewright.contrib.otel``."""

from .contrib.otel import OpenTelemetry as OpenTelemetry
