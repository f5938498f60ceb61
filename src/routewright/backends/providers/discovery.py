"""Lists the models of a local server: Ollama, vLLM, llama.cpp or LM Studio.

Facts are from their public documentation. These models cost nothing. Unreported facts stay unknown.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import anyio
from msgspec import MsgspecError, Struct, convert
from msgspec.structs import replace

from routewright._core.request.rules import MAX_NAME_CHARS
from routewright.errors import ProviderFault
from routewright.wire import JsonObject, Modality, Model, Pricing
from routewright.wire.problems import EXACT, listed

Ask = Callable[..., Awaitable[Any]]
"""Sends a request to a path below the server's root, or below its base URL without a leading slash, and returns the
JSON. With a ``body`` it is a POST. Raises ``ProviderFault``."""

E = TypeVar("E", bound=Struct)
_log = logging.getLogger(__name__)
_AT_A_TIME = 8
"""Concurrent requests about single models."""
_NUM_CTX = re.compile(r"^num_ctx\s+(\d+)", re.MULTILINE)


class Listing(Struct):
    """What is remembered of a server between its lists of models."""

    details: dict[str, Model | None] = {}
    """Details of models that Ollama has shown, by name and digest."""
    left_out: dict[str, None] = {}
    logged: str = ""

    def read(self, entries: Any, kind: type[E]) -> list[E]:
        """The entries of a list that are of a kind. The others are left out. Raises ``TypeError`` if it is none, or has
        only others."""
        results: list[E] = []
        for entry in entries or ():
            try:
                results.append(convert(entry, kind))
            except MsgspecError:
                name = entry.get("id", entry.get("name", "")) if isinstance(entry, dict) else entry
                self.left_out[str(name)] = None
        if entries and not results:
            raise TypeError("another kind of list")
        return results

    def select(self, provider: str, models: list[Model]) -> list[Model]:
        """The models with a printable name of bounded length, by id. The others are left out, as is a repeated one, and
        named in one warning."""
        usable: dict[str, Model] = {}
        for model in models:
            name = model.provider_model_id or ""
            if not name.strip() or not name.isprintable() or len(model.id) > MAX_NAME_CHARS or model.id in usable:
                self.left_out[name] = None
            else:
                usable[model.id] = model
        if (names := listed([*self.left_out])) not in ("", self.logged):
            _log.warning("%s lists models that cannot be used, and are left out: %s", provider, names)
        self.left_out.clear()
        self.logged = names
        return [usable[model_id] for model_id in sorted(usable)]


class Server(NamedTuple):
    """A kind of server: how to list its models, and hints if there are none."""

    list: Callable[[str, Ask, Listing], Awaitable[list[Model]]]
    """Takes the provider's name."""
    start: str
    get: str


class _Tag(Struct):
    name: str
    digest: str = ""
    context_length: int | None = None  # of a loaded one


class _Details(Struct):
    model_info: JsonObject = {}
    parameters: str = ""
    capabilities: tuple[str, ...] = ("completion",)


class _Entry(Struct):
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


async def _ollama(provider: str, ask: Ask, listing: Listing) -> list[Model]:
    """Details of a model are cached by digest. A loaded model may have a smaller window than possible."""
    tags = listing.read((await ask("/api/tags"))["models"], _Tag)
    slots = anyio.CapacityLimiter(_AT_A_TIME)

    async def show(tag: _Tag) -> None:
        try:
            async with slots:
                details = convert(await ask("/api/show", body={"model": tag.name}), _Details)
        except (ProviderFault, MsgspecError):  # tried again next time
            return
        listing.details[tag.name + tag.digest] = None
        abilities = details.capabilities
        if "completion" in abilities:  # else it makes embeddings
            trained = next((size for key, size in details.model_info.items() if key.endswith(".context_length")), None)
            window = int(match[1]) if (match := _NUM_CTX.search(details.parameters)) else trained
            name = tag.name.removesuffix(":latest")
            model = _model(provider, name, tag.name, window, image="vision" in abilities, tool="tools" in abilities)
            listing.details[tag.name + tag.digest] = replace(model, reasoning="thinking" in abilities)

    async with anyio.create_task_group() as group:
        for tag in tags:
            if tag.name + tag.digest not in listing.details:
                group.start_soon(show, tag)
    try:
        loaded = convert((await ask("/api/ps"))["models"] or [], list[_Tag])
    except ProviderFault:  # another server with Ollama's API
        loaded = []
    windows = {tag.name: tag.context_length for tag in loaded}
    models: list[Model] = []
    for tag in tags:
        if model := listing.details.get(tag.name + tag.digest):
            sizes = filter(None, (model.context_window, windows.get(tag.name)))
            models.append(replace(model, context_window=min(sizes, default=None)))
    return models


async def _vllm(provider: str, ask: Ask, listing: Listing) -> list[Model]:
    """Whether it supports tools is not reported. Without, it refuses requests with tools."""
    models = listing.read((await ask("models"))["data"], _Entry)
    windows = {model.id: model.max_model_len for model in models}
    return [
        _model(provider, model.id, model.id, model.max_model_len or windows.get(model.parent or ""), tool=True)
        for model in models
    ]


async def _llamacpp(provider: str, ask: Ask, listing: Listing) -> list[Model]:
    """Templates without tools silently drop them. With several models, their templates are not reported."""
    entries = listing.read((await ask("models"))["data"], _Entry)
    props = _Props()
    if len(entries) == 1:
        try:
            props = convert(await ask("/props"), _Props)
        except ProviderFault as fault:
            if fault.status is None:
                raise
    image = props.modalities.get("vision") is True
    tool = props.chat_template_caps.get("supports_tools") is True
    models: list[Model] = []
    for model in entries:
        name = re.sub(r"^.*[/\\](.*)\.gguf$", r"\1", model.id)
        sizes = model.meta or {}
        window = props.default_generation_settings.get("n_ctx") or sizes.get("n_ctx") or sizes.get("n_ctx_train")
        models.append(_model(provider, name, model.id, window, image=image, tool=tool))
    return models


async def _lmstudio(provider: str, ask: Ask, listing: Listing) -> list[Model]:
    """Models without reported capabilities support tools."""
    models: list[Model] = []
    for entry in listing.read((await ask("/api/v0/models"))["data"], _Entry):
        window = entry.loaded_context_length or entry.max_context_length
        tool = "tool_use" in entry.capabilities
        if entry.type != "embeddings":
            models.append(_model(provider, entry.id, entry.id, window, image=entry.type == "vlm", tool=tool))
    return models


def _model(provider: str, name: str, wire_name: str, window: Any, *, image: bool = False, tool: bool = False) -> Model:
    abilities: dict[Modality, bool] = {"text": True, "image": image, "tool": tool}
    return Model(
        id=f"{provider}/{re.sub(r'[^!-~]', '-', name)}",
        provider_model_id=wire_name,
        display_name=name,
        context_window=window if type(window) is int and 0 < window <= EXACT else None,
        modalities=tuple(modality for modality, is_supported in abilities.items() if is_supported),
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
