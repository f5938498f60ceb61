"""Embeddings from any server that has OpenAI's ``POST /v1/embeddings``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import numpy as np
from msgspec import Meta, MsgspecError, Struct, json

from routewright.backends.providers.endpoint import Endpoint, address_of, check_arguments, keys_of
from routewright.backends.providers.faults import fault_of_answer
from routewright.backends.providers.hosts import HOSTS
from routewright.backends.transport import AutoTransport
from routewright.errors import ProviderFault, ValidationFailed
from routewright.protocols import Transport
from routewright.wire import FaultKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_BYTES = 1 << 20
"""Of an answer."""


class _Embedding(Struct):
    embedding: Annotated[list[float], Meta(min_length=1)]


class _Answer(Struct):
    data: Annotated[list[_Embedding], Meta(min_length=1, max_length=1)]


class OpenAIEmbedder:
    """Asks a server for the embedding of each question that is not an exact hit.

        OpenAIEmbedder("text-embedding-3-small")                              # the key is OPENAI_API_KEY
        OpenAIEmbedder("nomic-embed-text", base_url="http://localhost:11434/v1")

    The key in the environment is sent to no ``base_url``: pass it as ``api_key``. Anything but an embedding raises
    ``ProviderFault``, which makes the call a miss. Only the last user turn is sent. The cache waits for a second at
    most.
    """

    def __init__(
        self,
        model: str = "text-embedding-3-small",
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        dimensions: int | None = None,
        transport: Transport | None = None,
    ) -> None:
        check_arguments(model, base_url)
        if dimensions is not None and dimensions < 1:
            raise ValidationFailed.at("dimensions", f"must be 1 or more, got {dimensions}", "for example 256")
        own = Endpoint(name="embedder", base_url=base_url, needs_key=False) if base_url else None
        endpoint: Endpoint = own or HOSTS["openai"]
        self._key = keys_of(api_key, endpoint, os.environ)[0]
        self._url = address_of(endpoint, base_url, os.environ) + "/embeddings"
        self._fields = {"model": model, "encoding_format": "float"} | ({"dimensions": dimensions} if dimensions else {})
        self._own_transport = transport is None
        self._transport = AutoTransport() if transport is None else transport
        self.name = f"{model} of {self._url}" + (f", {dimensions} numbers" if dimensions else "")

    def __repr__(self) -> str:
        return f"OpenAIEmbedder({self._fields['model']!r}, base_url={self._url.removesuffix('/embeddings')!r})"

    async def embed(self, text: str) -> NDArray[np.float32]:
        """The embedding, float32. Raises ``ProviderFault``."""
        headers, key = {"content-type": "application/json", "accept": "application/json"}, self._key.reveal()
        if key:
            headers["authorization"] = f"Bearer {key}"
        body = json.encode({**self._fields, "input": text})
        async with self._transport.request("POST", self._url, headers=headers, body=body) as response:
            if response.status != 200:
                # its body stays unread, since some servers repeat the question or the key in it
                raise fault_of_answer("the embedder", response.status, response.headers, "")
            content = await response.read(MOST_BYTES)
        try:
            with np.errstate(over="ignore"):  # infinities are refused where a vector is used
                return np.array(json.decode(content, type=_Answer).data[0].embedding, np.float32)
        except (MsgspecError, UnicodeError, RecursionError):  # not chained, since it may hold the text
            raise ProviderFault(FaultKind.MALFORMED, "the embedder answered with no embedding", status=200) from None

    async def aclose(self) -> None:
        """Close the connections, unless the transport was given."""
        if self._own_transport:
            await self._transport.aclose()
