"""The command ``import``, with ``litellm``: a proxy's configuration as a catalogue, policies and a program."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections import defaultdict
from importlib.resources import files
from itertools import chain, count
from pathlib import Path
from shutil import copytree
from tempfile import TemporaryDirectory
from typing import Annotated

from msgspec import Meta, Struct, ValidationError, convert, field, to_builtins

from routewright._core.money import per_million
from routewright._setup.input_file import text_of
from routewright.backends.providers.hosts import ENDPOINTS, HOSTS
from routewright.catalogue import Catalogue, chooses, model_called, undated
from routewright.errors import Problem, renaming, require_extra
from routewright.policies import read_policies
from routewright.wire import JsonObject
from routewright.wire.problems import shown

from .command import GATE_FAILED, JSON, OK, arg, refused, verb
from .show import Line, Screen, replace_file

_DATA = files("routewright.data")
SCHEMAS = "https://raw.githubusercontent.com/routewright/routewright/main/src/routewright/data/{}.schema.json"
"""Where editors read the schemas of files; they are in the package, too."""
_WORDS: JsonObject = json.loads(_DATA.joinpath("litellm.json").read_text("utf-8"))
"""LiteLLM's names of vendors with ours, keys to ignore, and hints by patterns of paths."""
_BROKEN = "is no deployment"
_MOST_CHARS = 1 << 20
"""Bounds a file whose YAML aliases are expanded."""
_REFERENCE = "os.environ/"
_PLAIN_URL = re.compile(r"https?://[\w.-]+(:\d+)?(/[a-z]{1,12}|/v\d+)*/?")
"""An address without room for a credential."""
_NO_CHAT = re.compile(r"embed|dall-e|whisper|\btts|rerank|image|video|moderation|transcri|speech|realtime")


class Deployment(Struct, kw_only=True):
    """What is used of an entry of ``model_list``, with its ``model_info`` and ``litellm_params``."""

    model_name: str
    model: Annotated[str, Meta(pattern=r"^\S+$")]
    custom_llm_provider: str = ""
    api_key: object = None
    api_base: Annotated[str, Meta(pattern=rf"^((?i:https?)://[^\s\[\]]+|{_REFERENCE}.+)$")] | None = None
    litellm_credential_name: object = None
    mode: str | None = None
    base_model: str = ""
    tags: list[str] = []
    context_window: int | None = field(default=None, name="max_input_tokens")
    max_output_tokens: int | None = None
    input_usd: Annotated[float, Meta(ge=0, le=0.01)] | None = field(default=None, name="input_cost_per_token")
    output_usd: Annotated[float, Meta(ge=0, le=0.01)] | None = field(default=None, name="output_cost_per_token")


class Settings(Struct):
    """What is used of ``litellm_settings`` and ``router_settings``, with the deployments."""

    model_list: Annotated[list[object], Meta(min_length=1)]
    fallbacks: list[dict[str, list[str]]] = []
    default_fallbacks: list[str] = []
    model_group_alias: dict[str, object] = {}


@verb(
    "import litellm",
    arg("file FILE", "configuration of LiteLLM's proxy, in YAML or JSON"),
    arg("--out DIR", "new folder to write to", default="gateway"),
    JSON,
)
def _import(args: Namespace, screen: Screen) -> int:
    """Write the configuration of LiteLLM's proxy as ours.

    models.json gets the models, policies.json a policy for every model group, and gateway.py the providers. Secrets
    that are written in FILE are not copied. What has no counterpart is listed. The exit status is 1 if an entry of
    model_list cannot be read."""
    path = Path(args.file)
    folder = Path(args.out)
    if folder.exists():
        raise refused("--out", f"{folder} exists", "name a new folder")
    try:
        configuration = Configuration(_read(path))
    except (TypeError, ValueError) as error:
        problem = f"is not a configuration of LiteLLM's proxy: {error}"
        raise refused(str(path), problem, "name its config.yaml, or correct it") from error
    texts = configuration.texts(path.name)
    with TemporaryDirectory() as draft, renaming(lambda p: p._replace(path=p.path.removeprefix(f"{draft}/"))):
        for name, text in texts.items():
            replace_file(Path(draft, name), text)
        Catalogue.load(Path(draft, "models.json"))  # raises for values that are not allowed here
        read_policies(Path(draft, "policies.json"))
        copytree(draft, folder)
    screen.report(
        {"files": texts, "notes": [note._asdict() for note in configuration.notes]},
        *(Line(str(note), "bad") for note in configuration.notes),
        note=f"written to {folder}: {', '.join(texts)}",
    )
    return GATE_FAILED if any(note.problem.startswith(_BROKEN) for note in configuration.notes) else OK


def _read(path: Path) -> JsonObject:
    """Read a YAML file. Raises ``TypeError`` or ``ValueError`` for anything but an object of JSON."""
    with require_extra("cli", "'routewright import litellm'"):
        import yaml
    try:
        content = yaml.safe_load(text_of(path))
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # its text may quote a secret
        mark = getattr(error, "problem_mark", None)
        raise refused(str(path) if mark is None else f"{path}:{mark.line + 1}", "is not YAML", "correct it") from None
    text = ""
    for piece in json.JSONEncoder(default=str, allow_nan=False).iterencode(content):
        text += piece
        if len(text) > _MOST_CHARS:
            raise ValueError(f"it has more than {_MOST_CHARS} characters with its aliases expanded")
    return convert(json.loads(text), JsonObject)


class Configuration:
    """Models, policies and providers of a configuration. Raises ``ValidationError`` or ``TypeError`` if it has another
    shape."""

    def __init__(self, content: JsonObject) -> None:
        self.notes: list[Problem] = []
        """What has no counterpart, and what to do instead."""
        self._known = {model.id: model for model in Catalogue().models}
        self._rows: dict[str, JsonObject] = {}
        self._groups: dict[str, list[str]] = defaultdict(list)
        """The models of the groups."""
        self._keys: dict[str, tuple[str, object]] = {}
        """The addresses and keys of providers."""
        self._calls: dict[str, str] = {}
        """The calls that make providers, in Python, up to their models."""
        tables = [content.get(name) or {} for name in ("litellm_settings", "router_settings")]
        settings = convert({**tables[0], **tables[1], "model_list": content.pop("model_list", None)}, Settings)
        # a vendor with a wildcard keeps its name, which its models in the catalogue have
        for index, entry in sorted(enumerate(settings.model_list), key=lambda item: "*" not in str(item[1])):
            try:
                self._add(f"model_list[{index}]", convert(entry, JsonObject))
            except (TypeError, ValidationError) as error:
                self._note(f"model_list[{index}]", f"{_BROKEN}: {error}", "correct it")
        for id in [id for id, row in self._rows.items() if "modalities" in row]:
            self._note(f"models.json: {id}", "is unknown to the catalogue", "write its quality and prices there")
        self._policies = self._read_policies(settings)
        for place, table in content.items():
            self._report(place, table if isinstance(table, dict) else {"": table}, Settings)

    def texts(self, source: str) -> dict[str, str]:
        """The files by their names. ``source`` is the name of the configuration."""
        ids = {*self._known, *self._rows}
        aliases = {name: p["models"][0] for name, p in self._policies.items() if name not in ids and not chooses(name)}
        models = [row for id, row in self._rows.items() if len(row) > 1 and "*" not in id]
        calls = ""
        for name, call in self._calls.items():
            served = ", ".join(f"Model(id={id!r})" for id in self._rows if id.startswith(f"{name}/"))
            calls += f"    {call}),\n" if "*" in served else f"    {call}, models=[{served}]),\n"
        template = _DATA.joinpath("litellm_gateway.txt").read_text("utf-8")
        return {
            "models.json": _json("catalogue", models=models, aliases=aliases),
            "policies.json": _json("policies", policies=[*self._policies.values()]),
            "gateway.py": template.format(source=repr(source), providers=calls),
        }

    def _note(self, path: str, problem: str = "has no counterpart", hint: str = "") -> None:
        hints = (text for pattern, text in _WORDS["hints"].items() if re.search(pattern, path))
        self.notes.append(Problem(path, problem, hint or next(hints, "it is left out")))

    def _report(self, place: str, table: JsonObject, shape: type[Struct]) -> None:
        """Note the keys that a shape does not have."""
        for key in table:
            if key not in shape.__struct_encode_fields__ and key not in _WORDS["dropped"]:
                self._note(f"{place}.{key}".rstrip("."))

    def _add(self, place: str, entry: JsonObject) -> None:
        """Add a deployment. Raises ``ValidationError`` or ``TypeError``."""
        table = {**entry, **(entry.get("model_info") or {}), **entry.get("litellm_params", {})}
        table.setdefault("api_base", table.pop("base_url", None))
        deployment = convert(table, Deployment, strict=False)
        model = deployment.model
        base = deployment.api_base
        makers = {row.provider for row in self._known.values() if undated(row.provider_model_id) == undated(model)}
        maker = makers.pop() if len(makers) == 1 else ""
        vendor = deployment.custom_llm_provider or (model.partition("/")[0] if "/" in model else maker)
        provider = _WORDS["providers"].get(vendor, vendor)
        if provider == "openai" and base is not None and not ENDPOINTS["openai"].is_own(base):
            provider = "custom"
        if _NO_CHAT.search(f"{model} {deployment.mode}"):
            self._note(place, f"{shown(model)} is not a chat model", "call it without a router")
        elif provider not in (*ENDPOINTS, "custom"):
            self._note(place, f"{shown(model)} has no counterpart")
        elif deployment.litellm_credential_name or (provider == "custom" and (base is None or "*" in model)):
            self._note(place, f"{shown(model)} has no address", "write the model's name, api_base and api_key there")
        else:
            id = self._id(place, provider, model.removeprefix(f"{vendor}/"), deployment)
            group = deployment.model_name
            self._groups[group].append(id)
            if group != id and (group in self._known or chooses(group)):
                self._note(place, f"{shown(group)} has a meaning here", f"send 'policy:{group}' for the group")
            self._report(place, table, Deployment)

    def _id(self, place: str, vendor: str, name: str, deployment: Deployment) -> str:
        """Our id of a model. A provider has one address, one key, and one row for a model."""
        # other classes than the one with hosts know an address only for the vendor's own name
        base = deployment.api_base or ("" if vendor in HOSTS else ENDPOINTS[vendor].base_url)
        key = (base, deployment.api_key)
        for number in count(1):
            own = f"{vendor}-{number}".removesuffix("-1")
            id = f"{own}/{name}"
            row = self._row(id, vendor, deployment)
            if self._keys.setdefault(own, key) == key and self._rows.setdefault(id, row) == row:
                break
        if own not in self._calls:
            call = f"{_WORDS['classes'].get(vendor, 'OpenAIProvider')}(name={own!r}"
            call += f", host=HOSTS[{vendor!r}]" if vendor in HOSTS else ""
            for argument, entry, value in (("api_key", "api_key", deployment.api_key), ("base_url", "api_base", base)):
                if value:
                    call += f", {argument}={self._source(f'{place}.{entry}', f'{own}_{argument}', str(value))}"
            self._calls[own] = call
        return id

    def _source(self, place: str, name: str, value: str) -> str:
        """A value in Python. Whatever may hold a secret becomes a variable."""
        if _PLAIN_URL.fullmatch(value):
            return repr(value)
        variable = value.removeprefix(_REFERENCE)
        if variable == value:  # GATEWAY_ keeps it apart from the variables of the file
            variable = f"GATEWAY_{name}".upper().replace("-", "_")
            self._note(place, "may hold a secret, so it is not copied", f"put it into {variable}")
        return f"os.environ[{variable!r}]"

    def _row(self, id: str, vendor: str, deployment: Deployment) -> JsonObject:
        """A model in the catalogue file."""
        usd = {key: getattr(deployment, key) for key in ("input_usd", "output_usd")}
        facts = {key: getattr(deployment, key) for key in ("context_window", "max_output_tokens", "tags")}
        facts["prices"] = {key: per_million(price) for key, price in usd.items() if price is not None}
        row = {"id": id} | {key: value for key, value in facts.items() if value}
        name = deployment.base_model.rpartition("/")[2] or id.partition("/")[2]
        like = model_called(name, self._known.values(), "openai" if vendor in ("azure", "custom") else vendor)
        if id in self._known or "*" in id:
            return row
        if like is None:
            return {"modalities": ["text", "tool"]} | row
        return {"like": like, "prices": to_builtins(self._known[like].pricing_per_1m)} | row

    def _read_policies(self, settings: Settings) -> dict[str, JsonObject]:
        """The policies of the groups, by name."""
        groups = {name: [*dict.fromkeys(ids)] for name, ids in self._groups.items() if "*" not in "".join((name, *ids))}
        chains = {group: targets for entry in settings.fallbacks for group, targets in entry.items()}
        aliases = {alias: str(group) for alias, group in settings.model_group_alias.items()}
        names = dict.fromkeys(chain(chains, *chains.values(), settings.default_fallbacks, aliases.values()))
        for name in [name for name in names if name not in groups]:
            self._note("router_settings", f"{shown(name)} is no group of chat models")
        policies: dict[str, JsonObject] = {}
        for group, own in groups.items():
            fallbacks = (*chains.get(group, ()), *settings.default_fallbacks)
            later = [*dict.fromkeys(id for name in fallbacks for id in groups.get(name, ()) if id not in own)]
            policies[group] = {"name": group.replace("@", "-"), "models": own + later}
            if later:
                policies[group] |= {"prefer": own, "fallback": {"models": later}}
        named = {alias: policies[group] | {"name": alias} for alias, group in aliases.items() if group in policies}
        return policies | named


def _json(kind: str, **content: object) -> str:
    return json.dumps({"$schema": SCHEMAS.format(kind), **content}, indent=2) + "\n"
