"""A collector of OTLP in a process of its own: prints its port, then every request as a line of JSON."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

REQUESTS: dict[str, Any] = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}


def tell(signal: str, headers: Mapping[str, str], message: Any) -> None:
    print(json.dumps({"signal": signal, "headers": dict(headers), "body": MessageToDict(message)}), flush=True)


class Handler(BaseHTTPRequestHandler):
    """OTLP over HTTP."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        message = REQUESTS[self.path]()
        message.ParseFromString(body)
        tell(self.path.rpartition("/")[2], {name.lower(): each for name, each in self.headers.items()}, message)
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def serve_http() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


def serve_grpc() -> None:
    import grpc  # type: ignore[import-untyped]
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as metrics
    from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as traces

    class Traces(traces.TraceServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            tell("traces", dict(context.invocation_metadata()), request)
            return ExportTraceServiceResponse()

    class Metrics(metrics.MetricsServiceServicer):
        def Export(self, request: Any, context: Any) -> Any:
            tell("metrics", dict(context.invocation_metadata()), request)
            return ExportMetricsServiceResponse()

    server = grpc.server(ThreadPoolExecutor(2))
    traces.add_TraceServiceServicer_to_server(Traces(), server)  # type: ignore[no-untyped-call]
    metrics.add_MetricsServiceServicer_to_server(Metrics(), server)  # type: ignore[no-untyped-call]
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    server.start()
    server.wait_for_termination()


if __name__ == "__main__":
    {"http": serve_http, "grpc": serve_grpc}[sys.argv[1]]()
