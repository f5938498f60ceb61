"""Calls a server through instructor, in each mode. ``test_client_compatibility.py`` runs it in its own environment."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import Any

import instructor  # type: ignore[import-not-found, unused-ignore]
import openai
from pydantic import BaseModel

URL, KEY = os.environ["URL"], os.environ["KEY"]
HI: Any = [{"role": "user", "content": "Hi"}]


class Weather(BaseModel):
    """The weather of a city."""

    city: str
    degrees: int


def main() -> None:
    """Raise what fails."""
    own = openai.OpenAI(base_url=f"{URL}/openai/v1", api_key=KEY, max_retries=0)
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA, instructor.Mode.MD_JSON):
        client = instructor.from_openai(own, mode=mode)
        asked = {"model": "gpt-4.1", "messages": HI, "response_model": Weather, "max_retries": 0}
        assert client.chat.completions.create(**asked).degrees == 7, mode
        *_, last = client.chat.completions.create_partial(**asked)
        assert last.city == "Oslo", mode
    with suppress(Exception):
        client.chat.completions.create(**{**asked, "model": "no-such-model"})
        raise SystemExit("a model that there is not has answered")
    asyncio.run(later())


async def later() -> None:
    """The same without blocking."""
    own = openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
    client = instructor.from_openai(own)
    said = await client.chat.completions.create(model="gpt-4.1", messages=HI, response_model=Weather)
    assert said.city == "Oslo"


main()
