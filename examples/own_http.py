"""Make the HTTP calls yourself: the Router says whom to call with what, and what to do when that fails."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

from routewright import OpenAIProvider, ProviderFault, Router
from routewright.router import StepCall, StepDone, StepWait
from routewright.wire import Chunk

PROVIDERS = {  # they write requests and read answers; here they send none
    "openai": OpenAIProvider("sk-first-key", name="openai"),
    "mistral": OpenAIProvider("second-key", name="mistral"),
}


def main() -> None:
    router = Router(providers=list(PROVIDERS.values()))
    with router.steps("Why is the sky blue?", goal="quality", budget={"maxCostUsd": 0.05}) as steps:
        while True:
            match steps.next():
                case StepCall() as call:
                    print(f"call {call.attempt}: {call.model}, within {call.timeout_s:.0f} s")
                    steps.feed(answer(call))
                case StepWait(seconds):
                    time.sleep(seconds)
                case StepDone():
                    break
    print(f"{steps.result.output} (${steps.result.routing.cost_usd:.6f})")
    router.blocking.close()


def answer(call: StepCall) -> list[Chunk] | ProviderFault:
    """Make one call."""
    provider = PROVIDERS[call.upstream.model.provider]
    request = provider.request(call.upstream)
    try:
        status, headers, body = send(request.url, request.reveal(), request.body, call.timeout_s)
        return provider.read(request, status, headers, body)
    except ProviderFault as fault:
        print(f"  {fault}")
        return fault


def send(url: str, headers: Mapping[str, str], body: bytes, timeout_s: float) -> tuple[int, dict[str, str], bytes]:
    """Stands for your HTTP client. One vendor has locked us out, the other answers."""
    if "openai.com" in url:
        return 401, {}, b'{"error": {"code": "invalid_api_key"}}'
    said = {"role": "assistant", "content": f"Light scatters, says {json.loads(body)['model']}."}
    document = {"choices": [{"message": said, "finish_reason": "stop"}]}
    return 200, {"content-type": "application/json"}, json.dumps(document).encode()


if __name__ == "__main__":
    main()
