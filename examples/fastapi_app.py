"""A FastAPI program with accounts: an answer, a stream of server-sent events, and refusals with their own status."""

from __future__ import annotations

import asyncio
from typing import Annotated

from fastapi import Depends, FastAPI, Header, Request
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.testclient import TestClient

from routewright import Answer, Caller, Console, MemoryStorage, Router, RouterError

router = Router.sandbox(storage=MemoryStorage())  # with Router(), the vendors of your keys
console = Console(router.storage)
app = FastAPI()


async def caller_of(authorization: Annotated[str, Header()] = "") -> Caller:
    """The account of the request's key."""
    return await console.authenticate(authorization)


CallerOf = Annotated[Caller, Depends(caller_of)]


@app.exception_handler(RouterError)
async def refuse(request: Request, error: RouterError) -> JSONResponse:
    """Answer errors as the vendors' clients expect them."""
    return JSONResponse(error.body, error.status, error.headers)


@app.post("/ask")
async def ask(question: str, caller: CallerOf) -> Answer:
    """The whole answer, with what it cost."""
    return await router.route(question, caller=caller, budget={"maxCostUsd": 0.01})


@app.get("/stream")
async def stream(question: str, caller: CallerOf) -> StreamingResponse:
    """The events of an answer."""
    stream = router.stream(question, caller=caller)
    await stream.start()  # raises what fails before the first content, which so keeps its status
    return StreamingResponse(stream.sse(), media_type="text/event-stream", headers=stream.headers)


def main() -> None:
    asyncio.run(console.create_account("acme", plan="team"))
    key = asyncio.run(console.create_key("acme", name="example", environment="sandbox")).secret.reveal()
    client = TestClient(app, headers={"Authorization": f"Bearer {key}"})
    print(client.post("/ask", params={"question": "Why is the sky blue?"}).json()["output"])
    print(client.get("/stream", params={"question": "Why is the sky blue?"}).text.splitlines()[0])
    refused = client.post("/ask", params={"question": "Why?"}, headers={"Authorization": "Bearer sk_test_unknown"})
    print(refused.status_code, refused.json()["error"]["code"])


if __name__ == "__main__":
    main()
