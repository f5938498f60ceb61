"""Lists the models of a local server: Ollama, vLLM, llama.cpp or LM Studio.

Facts are from their public documentation. These models cost nothing. Unreported facts stay unknown.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import anyio
from msgspec import MsgspecError, Struct, convert
from msgspec.structs import replace

from routewright.errors import ProviderFault
from routewright.wire import JsonObject, Modality, Model, Pricing

Ask = Callable[..., Awaitable[Any]]
"""Sends a request to a path below the server's root, or below its base URL without a leading slash, and returns the
JSON. With a ``body`` it is a POST. Raises ``ProviderFault``."""

_AT_A_TIME = 8
"""Concurrent requests about single models."""
_NUM_CTX = re.compile(r"^num_ctx\s+(\d+)", re.MULTILINE)


class Server(NamedTuple):
    """A kind of server: how to list its models, and hints if there are none."""

    list: Callable[[str, Ask, dict[str, Model | None]], Awaitable[list[Model]]]
    """Takes the provider's name, and a dict as a cache."""
    start: str
    get: str


class _Tag(Struct):
    name: str
    digest: str = ""
    context_length: int | None = None  # of a loaded one


class _Shown(Struct):
    model_info: JsonObject = {}
    parameters: str = ""
    capabilities: tuple[str, ...] = ("completion",)


class _Listed(Struct):
    id: str
    max_model_len: int | None = None  # this and the next of vLLM, a parent being the model that an adapter changes
    parent: str | None = None
    meta: JsonObject | None = None  # of llama.cpp
    type: str = "llm"  # from here on of LM Studio
    max_context_length: int | None = None
    loaded_context_length: int | None = None
    capabilities: tuple[str, ...] = ("tool_use",)


class _Props(Struct):
    default_generation_settings: JsonObject = {}
    chat_template_caps: JsonObject = {}
    modalities: JsonObject = {}


async def _ollama(provider: str, ask: Ask, known: dict[str, Model | None]) -> list[Model]:
    """Details of a model are cached by digest. A loaded model may have a smaller window than possible."""
    tags, slots = convert((await ask("/api/tags"))["models"] or [], list[_Tag]), anyio.CapacityLimiter(_AT_A_TIME)

    async def show(tag: _Tag) -> None:
        try:
            async with slots:
                shown = convert(await ask("/api/show", body={"model": tag.name}), _Shown)
        except (ProviderFault, MsgspecError):  # tried again next time
            return
        known[tag.name + tag.digest], able = None, shown.capabilities
        if "completion" in able:  # else it makes embeddings
            trained = next((size for key, size in shown.model_info.items() if key.endswith(".context_length")), None)
            window = int(found[1]) if (found := _NUM_CTX.search(shown.parameters)) else trained
            name = tag.name.removesuffix(":latest")
            model = _model(provider, name, tag.name, window, image="vision" in able, tool="tools" in able)
            known[tag.name + tag.digest] = replace(model, reasoning="thinking" in able)

    async with anyio.create_task_group() as group:
        for tag in tags:
            if tag.name + tag.digest not in known:
                group.start_soon(show, tag)
    try:
        loaded = convert((await ask("/api/ps"))["models"] or [], list[_Tag])
    except ProviderFault:  # another server with Ollama's API
        loaded = []
    windows = {each.name: each.context_length for each in loaded}
    found: list[Model] = []
    for tag in tags:
        if model := known.get(tag.name + tag.digest):
            sizes = filter(None, (model.context_window, windows.get(tag.name)))
            found.append(replace(model, context_window=min(sizes, default=None)))
    return found


async def _vllm(provider: str, ask: Ask, known: dict[str, Model | None]) -> list[Model]:
    """Whether it supports tools is not reported. Without, it refuses requests with tools."""
    listed = await _listed(ask("models"))
    windows = {each.id: each.max_model_len for each in listed}
    return [
        _model(provider, each.id, each.id, each.max_model_len or windows.get(each.parent or ""), tool=True)
        for each in listed
    ]


async def _llamacpp(provider: str, ask: Ask, known: dict[str, Model | None]) -> list[Model]:
    """Templates without tools silently drop them. With several models, their templates are not reported."""
    listed, props = await _listed(ask("models")), _Props()
    if len(listed) == 1:
        try:
            props = convert(await ask("/props"), _Props)
        except ProviderFault as fault:
            if fault.status is None:
                raise
    image, tool = props.modalities.get("vision") is True, props.chat_template_caps.get("supports_tools") is True
    found: list[Model] = []
    for each in listed:
        name, sizes = re.sub(r"^.*[/\\](.*)\.gguf$", r"\1", each.id), each.meta or {}
        window = props.default_generation_settings.get("n_ctx") or sizes.get("n_ctx") or sizes.get("n_ctx_train")
        found.append(_model(provider, name, each.id, window, image=image, tool=tool))
    return found


async def _lmstudio(provider: str, ask: Ask, known: dict[str, Model | None]) -> list[Model]:
    """Models without reported capabilities support tools."""
    found: list[Model] = []
    for each in await _listed(ask("/api/v0/models")):
        window, tool = each.loaded_context_length or each.max_context_length, "tool_use" in each.capabilities
        if each.type != "embeddings":
            found.append(_model(provider, each.id, each.id, window, image=each.type == "vlm", tool=tool))
    return found


async def _listed(answer: Awaitable[Any]) -> list[_Listed]:
    return convert((await answer)["data"], list[_Listed])


def _model(provider: str, name: str, wire_name: str, window: Any, *, image: bool = False, tool: bool = False) -> Model:
    abilities: dict[Modality, bool] = {"text": True, "image": image, "tool": tool}
    return Model(
        id=f"{provider}/{re.sub(r'[^!-~]', '-', name)}",
        provider_model_id=wire_name,
        display_name=name,
        context_window=window if isinstance(window, int) and window > 0 else None,
        modalities=tuple(each for each, there in abilities.items() if there),
        pricing_per_1m=Pricing(0.0, 0.0),
        structured_output=True,
    )


SERVERS = {
    "ollama": Server(_ollama, "ollama serve", "ollama pull NAME"),
    "vllm": Server(_vllm, "vllm serve NAME", "vllm serve NAME"),
    "llamacpp": Server(_llamacpp, "llama-server -m FILE", "llama-server -m FILE"),
    "lmstudio": Server(_lmstudio, "lms server start", "lms get NAME"),
}
"""By name of the host."""
