"""Names that users of other libraries try first, and what they are here: the hints of errors about unknown names."""

from __future__ import annotations

from collections.abc import Mapping

_TO_PROVIDER = "pass it to the provider: Router(providers=[OpenAIProvider('sk-...', base_url=...)])"
_VENDORS = "top_k n logprobs top_logprobs logit_bias presence_penalty frequency_penalty prompt_cache_key"

_NAMES: Mapping[str, Mapping[str, str]] = {  # by place, then by what they are here: a name of ours, or a sentence
    "request": {  # of the route request: bare names at the top and in ``params``, else with their place
        "'params.max_output_tokens' caps the answer, 'budget.maxTokens' the whole call": "max_tokens",
        "params.max_output_tokens": "max_completion_tokens",
        "it is 'models' here, a list of ids": "model",
        "pass a list of messages": "role content",
        "messages": "prompt input",
        "fallback.maxRetries": "num_retries",
        "it is 'fallback' here: {\"models\": [...]}": "fallbacks context_window_fallbacks",
        'pass a message with the role "system"': "system instructions system_prompt",
        "send it to one provider, as 'params.extra': {\"<provider>\": {...}}": f"{_VENDORS} safety_identifier user",
        "params.reasoning": "reasoning_effort thinking effort",
        "leave it out; usage is always reported": "stream_options",
        "write reasoning: 'high'": "params.reasoning.effort",
        'write {"type": "function", "function": {"name": ...}}, or the name alone': "tool_choice.name",
    },
    "arguments": {  # of ``route`` and the like, before those of the request
        "it is the first argument here: route([...]) or route('...')": "messages prompt input user_prompt contents",
        "max_retries": "num_retries",
        "it is 'output_type' here, an argument of route()": "result_type response_model text_format",
        "it is an argument of route(); elsewhere set params={'response_format': ...}": "output_type",
        _TO_PROVIDER: "api_key api_base base_url",
    },
    "Agent": {
        "system": "instructions system_prompt prompt",
        "output_type": "result_type response_format response_model",
        "max_steps": "max_turns max_iterations recursion_limit",
        "max_retries": "num_retries",
        "pass it to run(), as agent.run('...')": "messages input task",
        "pass it to run()": "idempotency_key metadata",
        "write Agent(Router(), models=[...])": "router",
        "use max_steps and total_budget_usd": "usage_limits",
        "use total_budget_usd, the budget of the whole run": "budget",
        "use per_step_timeout_ms, in milliseconds": "timeout_ms timeout",
        "the model chooses": "tool_choice",
        "call agent.stream(...)": "stream",
    },
    "Router": {
        "models come with the providers; route(models=[...]) or a Policy chooses from them": "model_list models model",
        _TO_PROVIDER: "api_key api_base base_url",
        "pass it to route(), or set it in a Policy": "routing_strategy strategy goal fallback fallbacks budget",
        "max_retries": "num_retries",
        "pass coordination=RedisCoordination(url)": "redis_url redis_host",
        "pass cache=True to route()": "cache_responses caching",
    },
    "HttpProvider": {
        "base_url": "api_base azure_endpoint endpoint url",
        "api_key": "key token keys",
        "headers": "default_headers extra_headers",
        "max_retries": "num_retries",
        "it is 'models' here: [Model(id=..., pricing_per_1m=Pricing(...))]": "model",
    },
    "Answer": {  # attributes
        "output": "text content choices output_text completion",
        "data": "parsed output_parsed structured_response",
        "finish_reason": "stop_reason",
        "trace_id": "id",
        "routing.cost_usd": "cost cost_usd total_cost response_cost",
        "routing.selected_model": "model model_name provider",
        "routing.tokens": "tokens usage_metadata",
        "routing.latency_ms": "latency latency_ms",
        "routing.cache_hit": "cached cache_hit",
        "to_dict()": "model_dump dict",
        "to_json()": "model_dump_json json",
    },
    "AgentAnswer": {"output": "text content final_output", "summary.total_cost_usd": "cost cost_usd total_cost"},
    "WindowUsage": {
        "it is the request window; use 'answer.routing.tokens'": "total_tokens prompt_tokens completion_tokens",
    },
    "files": {  # keys of catalogue files
        "it is 'prices' in a file": "pricing_per_1m",
        "it is 'input_usd' here, per million tokens": "input_cost_per_token",
        "it is 'output_usd' here, per million tokens": "output_cost_per_token",
    },
}
HINTS = {
    place: {
        name: hint if " " in hint else f"it is {hint!r} here" for hint, words in names.items() for name in words.split()
    }
    for place, names in _NAMES.items()
}
"""By place and foreign name."""


def no_attribute(owner: object, name: str) -> AttributeError:
    """The error for an attribute that ``owner`` lacks, with what it is here."""
    hint = next(filter(None, (HINTS.get(kind.__name__, {}).get(name) for kind in type(owner).__mro__)), None)
    text = f"{type(owner).__name__!r} object has no attribute {name!r}"
    return AttributeError(f"{text}; {hint}" if hint else text, name=name, obj=owner)
