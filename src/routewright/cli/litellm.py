"""The command ``import``, with ``litellm``: a proxy's configuration as a catalogue, policies and a program.

What is used is taken out of copies of the tables; what is left in them has no counterpart, and is reported."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterable, Mapping
from importlib.resources import files
from itertools import product
from pathlib import Path

from msgspec import to_builtins

from routewright._core.catalogue.price_list import PROVIDERS
from routewright._core.money import per_million
from routewright._setup.input_file import text_of
from routewright.backends.providers.hosts import ENDPOINTS, HOSTS
from routewright.catalogue import Catalogue, model_called
from routewright.errors import Problem, require_extra
from routewright.policies import read_policies
from routewright.wire import JsonObject
from routewright.wire.problems import listed, shown

from .command import JSON, arg, refused, verb
from .show import Line, Screen, replace_file

_WORDS: JsonObject = json.loads(files("routewright.data").joinpath("litellm.json").read_text("utf-8"))
"""LiteLLM's names of things with ours, and hints by patterns of paths."""
_FALLBACKS = ("fallbacks", "content_policy_fallbacks", "context_window_fallbacks")
_REFERENCE = "os.environ/"
_SECRET = re.compile("key|secret|token$|password|credential|authorization", re.IGNORECASE)
_PRICE = re.compile(r"\d*\.?\d+(e[+-]?\d+)?", re.IGNORECASE)
_NO_CHAT = re.compile(r"embed|dall-e|whisper|\btts|rerank|image|video|moderation|transcri|speech|realtime")


@verb(
    "import litellm",
    arg("file FILE", "configuration of LiteLLM's proxy, in YAML or JSON"),
    arg("--out DIR", "new folder to write to; - prints the files", default="gateway"),
    JSON,
)
def _import(args: Namespace, screen: Screen) -> None:
    """Write the configuration of LiteLLM's proxy as ours.

    models.json gets the models, policies.json a policy for every model group, and gateway.py the providers. Secrets
    that are written in FILE are not copied. What has no counterpart is listed."""
    with require_extra("cli", "'routewright import litellm'"):
        import yaml
    path = Path(args.file)
    try:
        content = yaml.safe_load(text_of(path))
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # its text may quote a secret
        mark = getattr(error, "problem_mark", None)
        raise refused(str(path) if mark is None else f"{path}:{mark.line + 1}", "is not YAML", "correct it") from error
    if not isinstance(content, dict) or not isinstance(content.get("model_list"), list) or not content["model_list"]:
        raise refused(str(path), "has no 'model_list' with deployments", "name the config.yaml of LiteLLM's proxy")
    configuration = Configuration(content)
    texts = configuration.texts(path.name)
    folder = Path(args.out)
    is_written = args.out != "-"
    if is_written:
        if folder.exists():
            raise refused("--out", f"{folder} exists", "name a new folder")
        folder.mkdir(parents=True)
        for name, text in texts.items():
            replace_file(folder / name, text)
        Catalogue.load(folder / "models.json")  # raises for values that are not allowed here
        read_policies(folder / "policies.json")
    screen.report(
        {"files": texts, "notes": [note._asdict() for note in configuration.notes]},
        *(Line(f"# {name}\n{text}") for name, text in texts.items() if not is_written),
        *(Line(str(note), "bad") for note in configuration.notes),
        note=f"written to {folder}: {', '.join(texts)}" if is_written else "nothing is written",
    )


class Configuration:
    """What is read from a configuration."""

    def __init__(self, content: JsonObject) -> None:
        self.notes: list[Problem] = []
        """What has no counterpart, and what to do instead."""
        self._known = {model.id: model for model in Catalogue().models}
        self._rows: dict[str, JsonObject] = {}
        self._groups: dict[str, list[str]] = defaultdict(list)
        """The models of the groups."""
        self._providers: dict[tuple[str, str], tuple[str, list[str]]] = {}
        """Our names of providers and their models, by vendor and arguments."""
        self._variables: dict[str, str] = {}
        """The variables that stand for secrets of the file."""
        content = dict(content)
        # a vendor with a wildcard keeps its name, which its models in the catalogue have
        for index, entry in sorted(enumerate(content.pop("model_list")), key=lambda item: "*" not in str(item[1])):
            match entry:
                case {"model_name": str(group), "litellm_params": {"model": str(model)}}:
                    self._add(f"model_list[{index}]", group, model, dict(entry))
                case _:
                    self._note(f"model_list[{index}]", "is no deployment", "write model_name and litellm_params.model")
        tables = {name: _table(content, name) for name in ("litellm_settings", "router_settings")}
        arguments = [self._take(table, place, _WORDS["settings"]) for place, table in tables.items()]
        self._options = arguments[0] | arguments[1]
        self._policies = self._read_policies(tables)
        for place, rest in (*tables.items(), *content.items()):
            self._report(place, rest if isinstance(rest, dict) else [""])

    def texts(self, source: str) -> dict[str, str]:
        """The files by their names. ``source`` is the name of the configuration."""
        ids = {*self._known, *self._rows}
        aliases = {name: policy["models"][0] for name, policy in self._policies.items() if name not in ids}
        catalogue = {"models": [*self._rows.values()], "aliases": aliases}
        calls = "".join(f"    {_call(*key, *provider)},\n" for key, provider in self._providers.items())
        extra = "from routewright.backends.providers.litellm import LiteLLMProvider\n" if " LiteLLM" in calls else ""
        options = "".join(f"    {name}={value},\n" for name, value in self._options.items())
        template = files("routewright.data").joinpath("litellm_gateway.txt").read_text("utf-8")
        return {
            "models.json": json.dumps(catalogue, indent=2) + "\n",
            "policies.json": json.dumps({"policies": [*self._policies.values()]}, indent=2) + "\n",
            "gateway.py": template.format(source=source, extra=extra, providers=calls, options=options),
        }

    def _note(self, path: str, problem: str = "has no counterpart", hint: str = "") -> None:
        self.notes.append(Problem(path, problem, hint or _hint(path) or "it is left out"))

    def _report(self, place: str, rest: Iterable[str]) -> None:
        """Report the keys that are left in a table."""
        for key in rest:
            if key not in _WORDS["dropped"]:
                self._note(f"{place}.{key}".rstrip("."))

    def _take(self, table: JsonObject, place: str, names: Mapping[str, str]) -> dict[str, str]:
        """Take keys out of a table, as arguments in Python source. Secrets become variables."""
        arguments = {}
        for key in [key for key in names if isinstance(table.get(key), str | int | float)]:
            value = table.pop(key)
            arguments[names[key]] = repr(value)
            if isinstance(value, str) and value.startswith(_REFERENCE):
                arguments[names[key]] = f"os.environ[{value.removeprefix(_REFERENCE)!r}]"
            elif isinstance(value, str) and (_SECRET.search(key) or "@" in value or "?" in value):
                variable = self._variables.setdefault(value, f"LITELLM_{key}_{len(self._variables) + 1}".upper())
                self._note(f"{place}.{key}", "holds a secret, which was not copied", f"put it into {variable}")
                arguments[names[key]] = f"os.environ[{variable!r}]"
        return arguments

    def _add(self, place: str, group: str, model: str, entry: JsonObject) -> None:
        """Read a deployment."""
        params = _table(entry, "litellm_params")
        info = _table(entry, "model_info")
        if model.startswith(_REFERENCE) or _NO_CHAT.search(f"{model} {info.get('mode')}"):
            self._note(place, f"{shown(model)} is not the name of a chat model", "call it without a router")
            return
        vendor = "anthropic" if model.startswith("claude") else "openai"
        vendor = str(params.pop("custom_llm_provider", model.partition("/")[0] if "/" in model else vendor))
        name = model.removeprefix(f"{vendor}/")
        provider = _WORDS["providers"].get(vendor) or PROVIDERS.get(vendor, vendor)
        if vendor == "openai" and "api.openai.com" not in str(params.get("api_base") or "api.openai.com"):
            provider = "custom"
        facts: JsonObject = {}
        for table in (info, params):
            facts |= {ours: table.pop(key) for key, ours in _WORDS["facts"].items() if key in table}
            if all(_PRICE.fullmatch(str(table.get(key))) for key in _WORDS["prices"]):
                facts["prices"] = {ours: per_million(float(table.pop(key))) for key, ours in _WORDS["prices"].items()}
        base = str(info.pop("base_model", name if provider == "azure" else "")).rpartition("/")[2]
        like = model_called(name, self._known.values(), provider)
        if like is None and base:
            like = model_called(base, self._known.values(), "openai")
        source = self._arguments(f"{place}.litellm_params", params, vendor, provider)
        number = 1 + sum(known == provider for known, _ in self._providers)
        new = (provider if number == 1 else f"{provider}-{number}", list[str]())
        own, models = self._providers.setdefault((provider, source), new)
        id = f"{own}/{name}"
        models.append(id)
        self._groups[group].append(id)
        if id not in self._known and like is not None:
            facts = {"like": like, "prices": to_builtins(self._known[like].pricing_per_1m)} | facts
        elif id not in self._known and id not in self._rows and "*" not in id:
            facts["modalities"] = ["text", "tool"]
            self._note(f"models.json: {id}", "is unknown to the catalogue", "write its quality and prices there")
        if facts and "*" not in id:
            self._rows[id] = self._rows.get(id, {}) | {"id": id} | facts
        for part, rest in ((".litellm_params", params), (".model_info", info), ("", entry)):
            self._report(f"{place}{part}", rest)

    def _arguments(self, place: str, params: JsonObject, vendor: str, provider: str) -> str:
        """Take the arguments of a provider out of a deployment, as Python source."""
        if provider in (*ENDPOINTS, "custom") and not vendor.startswith("vertex"):
            arguments = self._take(params, place, _WORDS["arguments"])
        else:
            arguments = {"vendor": repr(vendor)} | self._take(params, place, {"api_key": "api_key"})
            names = {key: key for key in params if key not in _WORDS["dropped"] and not _hint(f".{key}")}
            options = [f"{key!r}: {value}" for key, value in self._take(params, place, names).items()]
            arguments["options"] = f"{{{', '.join(options)}}}"
        return ", ".join(f"{key}={value}" for key, value in arguments.items())

    def _read_policies(self, tables: Mapping[str, JsonObject]) -> dict[str, JsonObject]:
        """The policies of the groups, by name."""
        groups = {name: [*dict.fromkeys(ids)] for name, ids in self._groups.items() if "*" not in "".join((name, *ids))}
        router = tables["router_settings"]
        chains: dict[str, list[str]] = defaultdict(list)
        refusals = set[str]()
        for kind, place in product(_FALLBACKS, tables):
            for entry in _listed(tables[place].pop(kind, None)):
                for group, targets in entry.items() if isinstance(entry, dict) else [(entry, None)]:
                    chain = [str(group), *map(str, _listed(targets))]
                    if unknown := [name for name in chain if name not in groups]:
                        self._note(f"{place}.{kind}", f"names {listed(unknown)}, which is no group of chat models")
                    chains[chain[0]] += chain[1:]
                    if kind == "content_policy_fallbacks":
                        refusals.add(chain[0])
        always = [str(name) for table in tables.values() for name in _listed(table.pop("default_fallbacks", None))]
        strategy = _WORDS["strategies"].get(str(router.get("routing_strategy")))
        if strategy is not None:
            del router["routing_strategy"]
        policies = {}
        for group, own in groups.items():
            targets = [id for name in (*chains[group], *always) for id in groups.get(name, ()) if id not in own]
            later = [*dict.fromkeys(targets)]
            policy: JsonObject = {"name": group.replace("@", "-"), "models": own + later}
            if strategy is not None:
                policy["strategy"] = strategy
            if later:
                refusal = {"on_refusal": "fallback"} if group in refusals else {}
                policy |= {"prefer": own, "fallback": {"models": later, **refusal}}
            policies[group] = policy
        for alias, group in _table(router, "model_group_alias").items():
            name = str(group.get("model") if isinstance(group, dict) else group)
            if name in policies:
                policies[alias] = policies[name] | {"name": alias}
            else:
                self._note(f"router_settings.model_group_alias.{alias}", "names no group of chat models")
        return policies


def _call(vendor: str, source: str, name: str, models: list[str]) -> str:
    """The call that makes a provider, as Python source."""
    kind = "LiteLLMProvider" if source.startswith("vendor=") else _WORDS["classes"].get(vendor, "OpenAIProvider")
    arguments = [f"name={name!r}", source]
    if name != vendor and vendor in HOSTS and kind == "OpenAIProvider":
        arguments.append(f"host=HOSTS[{vendor!r}]")
    if name != vendor and kind == "AnthropicProvider" and "base_url" not in source:
        arguments.append(f"base_url={ENDPOINTS[vendor].base_url!r}")
    if "*" not in "".join(models):
        arguments.append(f"models=[{', '.join(f'Model(id={id!r})' for id in dict.fromkeys(models))}]")
    return f"{kind}({', '.join(filter(None, arguments))})"


def _table(content: JsonObject, name: str) -> JsonObject:
    """Take a copy of a table out of another; empty if there is none."""
    return dict(content.pop(name)) if isinstance(content.get(name), dict) else {}


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _hint(path: str) -> str:
    return next((text for pattern, text in _WORDS["hints"].items() if re.search(pattern, path)), "")
