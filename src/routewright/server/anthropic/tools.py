"""Tools, which of them is to be called, and the form of the answer: the Messages API's as the common chat format's."""

from __future__ import annotations

from typing import Any

from routewright._core.request.problems import shown
from routewright.wire import FunctionName, NamedToolChoice, Tool

from .fields import Fields, wrong

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
FORM_NAME = "answer"
"""The common format names a schema, this one does not."""


def tools_of(declared: list[Fields]) -> list[Tool]:
    """The tools that the client runs. Raises ``ValidationFailed`` for one that Anthropic runs, or knows the schema of:
    a model of another vendor could not use it, and would answer as if it were not there."""
    return [_tool(fields) for fields in declared]


def choice_of(fields: Fields | None, tools: list[Tool]) -> str | NamedToolChoice | None:
    """What ``tool_choice`` says."""
    if fields is None:
        return None
    kind = fields.need("type", str, "one of auto, any, tool, none")
    name = fields.get("name", str)
    fields.end()
    if kind == "tool":
        return NamedToolChoice(FunctionName(_declared(name, fields, tools)))
    if kind not in _CHOICES:
        raise wrong(fields.at("type"), f"must be one of auto, any, tool, none, got {shown(kind)}")
    if kind == "any" and not tools:
        raise wrong(fields.at("type"), "is 'any', but there are no tools", "declare 'tools'")
    return _CHOICES[kind] if tools or kind == "none" else None


def form_of(config: Fields | None, older: Fields | None) -> dict[str, Any] | None:
    """The ``response_format`` that ``output_config.format`` asks for, or ``output_format``, as it was called before."""
    form = None if config is None else config.inner("format")
    if form is not None and older is not None:
        older.ignored.add("output_format")
    if config is not None:
        config.end()
    form = form or older
    if form is None:
        return None
    kind = form.need("type", str, "'json_schema'")
    if kind != "json_schema":
        raise wrong(form.at("type"), f"must be 'json_schema', got {shown(kind)}")
    schema = form.need("schema", dict)
    form.end()
    return {"type": kind, "json_schema": {"name": FORM_NAME, "schema": schema}}


def _tool(fields: Fields) -> Tool:
    kind = fields.get("type", str) or "custom"
    if kind != "custom":
        hint = "leave it out, or declare a tool of your own with an input_schema"
        raise wrong(fields.at("type"), f"is {shown(kind)}, a tool that only Anthropic's models know", hint)
    name, told = fields.need("name", str), fields.get("description", str)
    schema, strict = fields.need("input_schema", dict), fields.get("strict", bool)
    fields.end()
    return Tool(name=name, description=told, parameters=schema, strict=strict)


def _declared(name: str | None, fields: Fields, tools: list[Tool]) -> str:
    if name is None:
        raise wrong(fields.at("name"), "is missing", "name the tool")
    if name not in [tool.name for tool in tools]:
        raise wrong(fields.at("name"), f"names the tool {shown(name)}, which is not declared", "declare it in 'tools'")
    return name
