"""Servers of one's own on loopback, as their documentation describes them: what they say of their models, and calls."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

Answers = dict[str, Any]
"""JSON by path; a function is called with the body of the request."""


class LocalServer:
    """Answers paths with JSON, and chat completions with the model's name."""

    def __init__(self, answers: Answers, port: int = 0) -> None:
        self.answers = answers
        self.requests: list[tuple[str, str]] = []
        """Methods and paths, as they came."""
        self.keys: set[str | None] = set()
        self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(self))
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self.place = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.place}/v1"

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.01], daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def asked(self, path: str) -> int:
        return sum(each == path for _, each in self.requests)

    def answer(self, path: str, body: Any) -> Any:
        """The JSON of an answer; None: 404."""
        if path.endswith("/chat/completions"):
            message = {"role": "assistant", "content": f"I am {body['model']}"}
            choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
            return {"choices": choices, "usage": {"prompt_tokens": 3, "completion_tokens": 4}}
        answer = self.answers.get(path)
        return answer(body) if callable(answer) else answer


def _handler(server: LocalServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))

        def _answer(self, body: Any) -> None:
            server.requests.append((self.command, self.path))
            server.keys.add(self.headers["authorization"])
            found = server.answer(self.path, body)
            sent = json.dumps({"error": "not found"} if found is None else found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler


SHOWN = {
    "llama3.2:latest": {
        "parameters": 'num_keep                       24\nstop                           "<|eot_id|>"',
        "details": {"family": "llama", "parameter_size": "3.2B", "quantization_level": "Q4_K_M"},
        "model_info": {"general.architecture": "llama", "llama.context_length": 131072, "llama.block_count": 28},
        "capabilities": ["completion", "tools"],
    },
    "gpt-oss:20b": {
        "parameters": "num_ctx                        16384\ntemperature                    1",
        "model_info": {"general.architecture": "gptoss", "gptoss.context_length": 131072},
        "capabilities": ["completion", "tools", "thinking"],
    },
    "gemma4:31b": {
        "model_info": {"general.architecture": "gemma4", "gemma4.context_length": 262144},
        "capabilities": ["completion", "vision"],
    },
    "nomic-embed-text:latest": {
        "model_info": {"nomic-bert.context_length": 2048},
        "capabilities": ["embedding"],
    },
}


def ollama(*names: str) -> Answers:
    """Ollama with some of the models of ``SHOWN``; all, if none are named."""
    tags = [{"name": name, "model": name, "size": 1, "digest": f"d-{name}"} for name in names or SHOWN]
    return {"/api/tags": {"models": tags}, "/api/show": lambda body: SHOWN.get(body["model"])}


VLLM: Answers = {
    "/v1/models": {
        "object": "list",
        "data": [
            {
                "id": "Qwen/Qwen3.5-9B",
                "object": "model",
                "owned_by": "vllm",
                "root": "Qwen/Qwen3.5-9B",
                "parent": None,
                "max_model_len": 32768,
                "permission": [{"allow_sampling": True}],
            },
            {"id": "sql", "object": "model", "owned_by": "vllm", "parent": "Qwen/Qwen3.5-9B", "max_model_len": None},
        ],
    }
}
LLAMACPP: Answers = {
    "/v1/models": {
        "models": [{"name": "x", "capabilities": ["completion", "multimodal"]}],
        "object": "list",
        "data": [
            {
                "id": "/models/Qwen3.5-9B-Q4_K_M.gguf",
                "object": "model",
                "owned_by": "llamacpp",
                "meta": {"vocab_type": 2, "n_vocab": 262144, "n_ctx_train": 131072, "n_embd": 1536, "size": 3},
            }
        ],
    },
    "/props": {
        "default_generation_settings": {"id": 0, "n_ctx": 8192, "params": {"temperature": 0.8}},
        "total_slots": 1,
        "model_path": "/models/Qwen3.5-9B-Q4_K_M.gguf",
        "chat_template": "{{ x }}",
        "modalities": {"vision": True, "audio": False},
        "chat_template_caps": {"supports_tools": True, "supports_tool_calls": True},
    },
}
LMSTUDIO: Answers = {
    "/api/v0/models": {
        "object": "list",
        "data": [
            {
                "id": "qwen2-vl-7b-instruct",
                "object": "model",
                "type": "vlm",
                "publisher": "mlx-community",
                "quantization": "4bit",
                "state": "not-loaded",
                "max_context_length": 32768,
            },
            {
                "id": "meta-llama-3.1-8b-instruct",
                "object": "model",
                "type": "llm",
                "state": "loaded",
                "max_context_length": 131072,
                "loaded_context_length": 4096,
                "capabilities": ["tool_use"],
            },
            {"id": "text-embedding-nomic-embed-text-v1.5", "type": "embeddings", "max_context_length": 2048},
        ],
    }
}
