"""Servers of one's own on loopback, as their documentation describes them: what they say of their models, and calls."""

from __future__ import annotations

from typing import Any

from .upstream import Answer, Request, Upstream, of_json

Answers = dict[str, Any]
"""JSON by path; a function is called with the body of the request."""


class LocalServer(Upstream):
    """Answers paths with JSON, and chat completions with the model's name."""

    def __init__(self, paths: Answers, port: int = 0) -> None:
        super().__init__(self._answer, port=port)
        self.paths = paths

    @property
    def keys(self) -> set[str | None]:
        return {request.headers.get("authorization") for request in self.requests}

    def asked(self, path: str) -> int:
        return sum(request.path == path for request in self.requests)

    def json_of(self, path: str, body: Any) -> Any:
        """The JSON of an answer; None: 404."""
        if path.endswith("/chat/completions"):
            message = {"role": "assistant", "content": f"I am {body['model']}"}
            choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
            return {"choices": choices, "usage": {"prompt_tokens": 3, "completion_tokens": 4}}
        answer = self.paths.get(path)
        return answer(body) if callable(answer) else answer

    def _answer(self, request: Request) -> Answer:
        document = self.json_of(request.path, request.body if request.raw else None)
        return of_json({"error": "not found"}, 404) if document is None else of_json(document)


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
