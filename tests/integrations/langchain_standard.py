"""LangChain's standard tests of chat models, run by ``test_langchain.py`` in a process with ``langchain-tests``."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.integration_tests import chat_models as standard_tests
from langchain_tests.unit_tests import ChatModelUnitTests

from routewright import Model, Pricing, Router
from routewright.integrations.langchain import ChatRoutewright
from routewright.testing import ScriptedProvider
from routewright.wire import Delta, Finish, Thought, ToolDelta, UpstreamCall, Usage

pytestmark = [
    pytest.mark.filterwarnings(f"ignore:{words}:Warning")
    for words in (".*is in beta", "Benchmark fixture was not used at all")
]
FILES = {".pdf": b"%PDF-1.4\n%%EOF", ".png": b"\x89PNG\r\n\x1a\n", ".wav": b"RIFF\x24\0\0\0WAVEfmt "}
"""What the tests download, by the ends of addresses."""
DETAILS = ["reasoning_output", "cache_read_input", "cache_creation_input"]
USAGE = Usage(30, 12, cached=8, reasoning=5, written=4)


def example(schema: dict[str, Any], text: str) -> Any:
    """A value that fits a JSON schema of the tests."""
    for branch in schema.get("anyOf", ()):
        return example(branch, text)
    if schema.get("type") == "object":
        return {name: example(field, text) for name, field in schema.get("properties", {}).items()}
    return {"integer": 3, "string": text}[schema["type"]]


def answer(call: UpstreamCall) -> list[Any]:
    """Calls a tool if there is one whose result is not the last message, else answers in the requested format."""
    last = call.messages[-1]
    text = last.content if isinstance(last.content, str) else "a text with parts"
    if call.tools and last.role != "tool":
        specs = {tool.function_spec.name: tool.function_spec for tool in call.tools}
        choice = call.tool_choice
        name = next(iter(specs)) if choice is None or isinstance(choice, str) else choice.function.name
        arguments = json.dumps(example(specs[name].parameters or {"type": "object"}, str(text)), ensure_ascii=False)
        half = len(arguments) // 2
        return [
            ToolDelta(0, arguments[:half], "call_1", name),
            ToolDelta(0, arguments[half:]),
            USAGE,
            Finish("tool_calls"),
        ]
    form = call.params.response_format or {"type": "text"}
    if form["type"] == "text":
        item = {"type": "thinking", "thinking": "A greeting.", "signature": "c2lnbmVk"}
        thoughts = [Thought("A greeting.", item)] if call.params.reasoning else []
        return [*thoughts, Delta("Hello, "), Delta("how are you?"), USAGE, Finish("stop")]
    joke = {"type": "object", "properties": {"setup": {"type": "string"}, "punchline": {"type": "string"}}}
    value = example(form["json_schema"]["schema"] if form["type"] == "json_schema" else joke, "a cat")
    return [*map(Delta, json.dumps(value).partition(":")), USAGE, Finish("stop")]


MODELS = [
    Model(
        id=f"anthropic/{name}",
        quality=0.9,
        context_window=200_000,
        max_output_tokens=8_000,
        modalities=("text", "image", "audio", "file", "tool"),
        structured_output=True,
        reasoning=True,
        pricing_per_1m=Pricing(1.0, 2.0),
    )
    for name in ("one", "two")
]
ROUTER = Router(providers=[ScriptedProvider(answer, models=MODELS)])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "structured" in metafunc.function.__name__ and "structured_output_method" in metafunc.fixturenames:
        methods = ["json_schema", "function_calling", "json_mode"]
        metafunc.parametrize("structured_output_method", methods, indirect=True)


class Capabilities:
    chat_model_class = ChatRoutewright
    chat_model_params = {"router": ROUTER, "model": "anthropic/one"}  # noqa: RUF012
    model_override_value = "anthropic/two"
    supports_json_mode = True
    supports_image_inputs = True
    supports_image_urls = True
    supports_pdf_inputs = True
    supports_audio_inputs = True
    supports_anthropic_inputs = True
    supports_image_tool_message = True
    supports_pdf_tool_message = True
    enable_vcr_tests = True
    supported_usage_metadata_details = {"invoke": DETAILS, "stream": DETAILS}  # noqa: RUF012


class TestUnits(Capabilities, ChatModelUnitTests):  # type: ignore[misc]
    pass


class TestCalls(Capabilities, ChatModelIntegrationTests):  # type: ignore[misc]
    method: str

    @pytest.fixture(autouse=True)
    def structured_output_method(self, request: pytest.FixtureRequest) -> None:
        self.method = getattr(request, "param", "json_schema")

    @pytest.fixture(autouse=True)
    def local_files(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def get(url: str, **_: object) -> SimpleNamespace:
            return SimpleNamespace(content=next(data for end, data in FILES.items() if url.endswith(end)))

        monkeypatch.setattr(standard_tests.httpx, "get", get)
        monkeypatch.setenv("LANGCHAIN_TESTS_USER_AGENT", "routewright")

    @property
    def structured_output_kwargs(self) -> dict[str, Any]:
        return {"method": self.method}

    def invoke_with_reasoning_output(self, *, stream: bool = False) -> AIMessage:
        model = ChatRoutewright(**self.chat_model_params, reasoning_effort="high")
        if not stream:
            return model.invoke("Hello")
        first, *rest = model.stream("Hello")
        return first + rest

    invoke_with_cache_read_input = invoke_with_reasoning_output
    invoke_with_cache_creation_input = invoke_with_reasoning_output
