"""Vendor errors, from documentation and public reports: each is classified correctly.

Names, numbers and ids are changed; the structure and the relevant words are original.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from routewright.backends.providers.faults import fault_in_answer, fault_of_answer

Shape = tuple[int, str, Any]
"""A status, the kind of fault, and a body."""


def told(status: int, kind: str, message: str, code: Any = None, type: str | None = "invalid_request_error") -> Shape:
    """OpenAI's shape, and of most who speak its protocol."""
    return wrapped(status, kind, message=message, type=type, param=None, code=code)


def flat(status: int, kind: str, message: Any, type: str, code: Any = None, **more: Any) -> Shape:
    """Mistral's shape, and vLLM's."""
    return bare(status, kind, object="error", message=message, type=type, param=None, code=code, **more)


def claude(status: int, kind: str, type: str, message: str) -> Shape:
    """Anthropic's shape."""
    return bare(status, kind, type="error", error={"type": type, "message": message}, request_id="req_1")


def google(status: int, kind: str, name: str, message: str, *reasons: str) -> Shape:
    """Google's shape."""
    made = "type.googleapis.com/google.rpc.ErrorInfo"
    details = [{"@type": made, "reason": reason, "domain": "googleapis.com"} for reason in reasons]
    more = {"details": details} if details else {}
    return wrapped(status, kind, code=status, message=message, status=name, **more)


def routed(status: int, kind: str, message: str, code: int | None = None, **metadata: Any) -> Shape:
    """OpenRouter's shape."""
    error = {"message": message, "code": code or status, "metadata": metadata}
    return bare(status, kind, error=error, user_id="user_1")


def wrapped(status: int, kind: str, /, **error: Any) -> Shape:
    return status, kind, {"error": error}


def bare(status: int, kind: str, /, **body: Any) -> Shape:
    return status, kind, body


TPM = (
    "Request too large for model `llama-3.3-70b-versatile` in organization `org_1` service tier `on_demand` on tokens "
    "per minute (TPM): Limit 12000, Requested 14137, please reduce your message size and try again."
)
LIMIT = (
    "Rate limit reached for model `llama-3.3-70b-versatile` in organization `org_1` service tier `on_demand` on tokens "
    "per day (TPD): Limit 100000, Used 97050, Requested 3619. Please try again in 9m38.016s."
)
SPENT = (
    "Your team 1 has either used all available credits or reached its monthly spending limit. To continue making API "
    "requests, please purchase more credits or raise your spending limit."
)
DENIED = "The caller does not have permission to execute the specified operation"
UNSAFE = "Content violates usage guidelines. Team: 1, API key ID: 2, Model: grok-4, Failed check: SAFETY_CHECK_TYPE_BIO"
OPENAI_TPM = (
    "Request too large for gpt-4o in organization org-1 on tokens per min (TPM): Limit 30000, Requested 342389."
)
LENGTH = "This model's maximum context length is 8192 tokens. However, your messages resulted in 8227 tokens."
LENGTH_TOLD = {"error": {"message": LENGTH, "type": "invalid_request_error", "param": None, "code": None}}
GONE = "The model `qwen-qwq-32b` has been decommissioned and is no longer supported."
SUSPENDED = (
    "Account a is suspended, possibly due to reaching the monthly spending limit or failure to pay past invoices."
)
SCHEMA = [{"type": "extra_forbidden", "loc": ["body", "n"], "msg": "Extra inputs are not permitted", "input": "x"}]
THOUGHT = "The `reasoning_content` in the thinking mode must be passed back to the API."
QUOTA = "You exceeded your current quota, please check your plan and billing details."
IN_FLIGHT = "This request would exceed your available credits given your current in-flight requests."
VLLM = "You passed 1015 input tokens and requested 10 output tokens. However, the model's context length is only 1024"

SHAPES: dict[str, Shape] = {
    # OpenAI
    "openai key": told(401, "auth", "Incorrect API key provided: sk-1.", "invalid_api_key"),
    "openai no credit": told(429, "auth", QUOTA, "insufficient_quota", "insufficient_quota"),
    "openai not paid": told(429, "auth", "Your account is not active.", "billing_not_active", "billing_not_active"),
    "openai limit": told(
        429, "rate_limited", "Rate limit reached for gpt-4o on requests per min.", "rate_limit_exceeded", "requests"
    ),
    "openai over a minute": told(429, "request", OPENAI_TPM, "rate_limit_exceeded", "tokens"),
    "openai length": told(400, "context_overflow", LENGTH, "context_length_exceeded"),
    "openai string": told(
        400, "context_overflow", "Invalid 'messages[1].content': string too long.", "string_above_max_length"
    ),
    "openai model": told(
        404, "model_not_found", "The model `x` does not exist or you do not have access to it.", "model_not_found"
    ),
    "openai project": told(
        403, "model_not_found", "Project `proj_1` does not have access to model `x`", "model_not_found"
    ),
    "openai endpoint": told(
        404, "model_not_found", "This is not a chat model and thus not supported in the v1/chat/completions endpoint."
    ),
    "openai temperature": told(
        400, "request", "Unsupported value: 'temperature' does not support 0.1 with this model.", "unsupported_value"
    ),
    "openai cap": told(
        400, "request", "Unsupported parameter: 'max_tokens' is not supported with this model.", "unsupported_parameter"
    ),
    "openai flagged": told(
        400,
        "refused",
        "Invalid prompt: your prompt was flagged as potentially violating our usage policy.",
        "invalid_prompt",
    ),
    "openai country": told(
        403,
        "auth",
        "Country, region, or territory not supported",
        "unsupported_country_region_territory",
        "request_forbidden",
    ),
    "openai server": told(
        500, "server", "The server had an error while processing your request. Sorry about that!", None, "server_error"
    ),
    "openai overloaded": told(
        503, "server", "The engine is currently overloaded, please try again later", None, "server_error"
    ),
    # Azure
    "azure limit": wrapped(
        429,
        "rate_limited",
        code="429",
        message="Requests to the ChatCompletions_Create Operation have exceeded token rate limit.",
    ),
    "azure key": wrapped(
        401, "auth", code="401", message="Access denied due to invalid subscription key or wrong API endpoint."
    ),
    "azure gateway key": bare(
        401, "auth", statusCode=401, message="Unauthorized. Access token is missing, invalid or expired."
    ),
    "azure deployment": wrapped(
        404,
        "model_not_found",
        code="DeploymentNotFound",
        message="The API deployment for this resource does not exist.",
    ),
    "azure timeout": wrapped(408, "timeout", code="Timeout", message="The operation was timeout."),
    # Anthropic
    "claude length": claude(
        400, "context_overflow", "invalid_request_error", "prompt is too long: 208310 tokens > 200000 maximum"
    ),
    "claude both": claude(
        400,
        "context_overflow",
        "invalid_request_error",
        "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000",
    ),
    "claude credit": claude(
        400, "auth", "invalid_request_error", "Your credit balance is too low to access the Anthropic API."
    ),
    "claude disabled": claude(400, "auth", "invalid_request_error", "This organization has been disabled."),
    "claude output": claude(400, "refused", "invalid_request_error", "Output blocked by content filtering policy"),
    "claude prefill": claude(
        400,
        "request",
        "invalid_request_error",
        "This model does not support assistant message prefill. The conversation must end with a user message.",
    ),
    "claude cap": claude(
        400,
        "request",
        "invalid_request_error",
        "max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens",
    ),
    "claude key": claude(401, "auth", "authentication_error", "invalid x-api-key"),
    "claude permission": claude(
        403, "auth", "permission_error", "Your API key does not have permission to use the specified resource."
    ),
    "claude model": claude(404, "model_not_found", "not_found_error", "model: claude-x"),
    "claude conflict": claude(409, "server", "conflict_error", "Conflict"),
    "claude large": claude(413, "context_overflow", "request_too_large", "Request exceeds the maximum size"),
    "claude limit": claude(
        429,
        "rate_limited",
        "rate_limit_error",
        "This request would exceed your organization's rate limit of 30,000 input tokens per minute",
    ),
    "claude overloaded": claude(529, "server", "overloaded_error", "Overloaded"),
    # Google
    "google key": google(
        400, "auth", "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.", "API_KEY_INVALID"
    ),
    "google expired": google(400, "auth", "INVALID_ARGUMENT", "API key expired. Please renew the API key."),
    "google leaked": google(
        403, "auth", "PERMISSION_DENIED", "Your API key was reported as leaked. Please use another API key."
    ),
    "google suspended": google(
        403, "auth", "PERMISSION_DENIED", "Permission denied: Consumer has been suspended.", "CONSUMER_SUSPENDED"
    ),
    "google place": google(400, "auth", "FAILED_PRECONDITION", "User location is not supported for the API use."),
    "google length": google(
        400,
        "context_overflow",
        "INVALID_ARGUMENT",
        "The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).",
    ),
    "google cloud length": google(
        400,
        "context_overflow",
        "INVALID_ARGUMENT",
        "The input token count is 40000 but model only supports up to 32768.",
    ),
    "google parts": google(
        400,
        "request",
        "INVALID_ARGUMENT",
        "* GenerateContentRequest.contents[1].parts: contents.parts must not be empty.",
    ),
    "google in a list": (
        400,
        "request",
        [{"error": {"code": 400, "message": "Request contains an invalid argument.", "status": "INVALID_ARGUMENT"}}],
    ),
    "google model": google(
        404,
        "model_not_found",
        "NOT_FOUND",
        "models/gemini-x is not found for API version v1beta, or is not supported for generateContent.",
    ),
    "google quota": google(429, "rate_limited", "RESOURCE_EXHAUSTED", QUOTA),
    "google cancelled": google(499, "server", "CANCELLED", "The operation was cancelled."),
    "google overloaded": google(503, "server", "UNAVAILABLE", "The model is overloaded. Please try again later."),
    # xAI
    "xai unsafe": bare(403, "refused", code=DENIED, error=UNSAFE),
    "xai no credit": bare(403, "auth", code=DENIED, error="Your newly created teams doesn't have any credits yet."),
    "xai spent": bare(429, "auth", code="Some resource has been exhausted", error=SPENT),
    "xai key": bare(
        400, "auth", code="Client specified an invalid argument", error="Incorrect API key provided: xa***1."
    ),
    "xai length": bare(
        400,
        "context_overflow",
        code="Client specified an invalid argument",
        error="This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    ),
    # Groq
    "groq over a minute": told(413, "request", TPM, "rate_limit_exceeded", "tokens"),
    "groq limit": told(429, "rate_limited", LIMIT, "rate_limit_exceeded", "tokens"),
    "groq length": told(
        400, "context_overflow", "Please reduce the length of the messages or completion.", "context_length_exceeded"
    ),
    "groq gone": told(400, "model_not_found", GONE, "model_decommissioned"),
    "groq blocked": told(
        403,
        "model_not_found",
        "The model `x` is blocked at the organization level.",
        "model_permission_blocked_org",
        "permissions_error",
    ),
    "groq capacity": told(498, "rate_limited", "Flex tier capacity exceeded", "capacity_exceeded"),
    # Mistral
    "mistral limit": flat(429, "rate_limited", "Rate limit exceeded", "rate_limited", "1300", raw_status_code=429),
    "mistral capacity": flat(
        429, "rate_limited", "Service tier capacity exceeded for this model.", "invalid_request_error"
    ),
    "mistral field": flat(422, "request", {"detail": SCHEMA}, "invalid_request_error"),
    "mistral call id": flat(
        400,
        "request",
        "Tool call id was turn1_0 but must be a-z, A-Z, 0-9, with a length of 9.",
        "invalid_function_call",
        "3280",
    ),
    "mistral length": flat(
        400,
        "context_overflow",
        "Prompt contains 65538 tokens, too large for model with 32768 maximum context length",
        "invalid_request_prompt",
        "3051",
    ),
    "mistral key": bare(401, "auth", detail="Unauthorized"),
    # DeepSeek, Moonshot, Alibaba, Z.ai, MiniMax
    "deepseek balance": told(402, "auth", "Insufficient Balance", "invalid_request_error", "unknown_error"),
    "deepseek risk": told(400, "refused", "Content Exists Risk", "invalid_request_error"),
    "deepseek thought": told(400, "request", THOUGHT, "invalid_request_error"),
    "moonshot length": told(
        400, "context_overflow", "Invalid request: Your request exceeded model token limit: 262144 (requested: 269030)"
    ),
    "moonshot old length": told(400, "context_overflow", "model max length exceeded, max length:8192"),
    "moonshot risk": told(
        400, "refused", "The request was rejected because it was considered high risk", 400, "content_filter"
    ),
    "moonshot overloaded": told(
        429,
        "rate_limited",
        "The engine is currently overloaded, please try again later",
        None,
        "engine_overloaded_error",
    ),
    "alibaba length": told(
        400,
        "context_overflow",
        "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 983616]",
        "invalid_parameter_error",
    ),
    "alibaba risk": told(
        400,
        "refused",
        "<400> InternalError.Algo.DataInspectionFailed: Input text data may contain inappropriate content.",
        "data_inspection_failed",
    ),
    "alibaba model": bare(
        403, "model_not_found", code="Model.AccessDenied", message="Model access denied.", request_id="1"
    ),
    "zai length": wrapped(400, "context_overflow", code="1261", message="Prompt exceeds max length"),
    "minimax length": bare(
        200,
        "context_overflow",
        base_resp={"status_code": 2013, "status_msg": "invalid params, context window exceeds limit"},
    ),
    "minimax request": bare(200, "request", base_resp={"status_code": 2013, "status_msg": "invalid params"}),
    # Cerebras, Together, Fireworks, Cohere, Hugging Face
    "cerebras limit": bare(
        429,
        "rate_limited",
        message="Tokens per minute limit exceeded - too many tokens processed.",
        type="too_many_tokens_error",
        param="quota",
        code="token_quota_exceeded",
    ),
    "together model": told(
        400,
        "model_not_found",
        "Unable to access non-serverless model x. Please create and start a new dedicated endpoint.",
        "model_not_available",
    ),
    "together length": told(
        422, "context_overflow", "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048."
    ),
    "fireworks suspended": told(412, "auth", SUSPENDED, "PRECONDITION_FAILED", "error"),
    "fireworks model": bare(
        404,
        "model_not_found",
        message="Model not found, inaccessible, and/or not deployed",
        param="model",
        code="NOT_FOUND",
        type="error",
    ),
    "cohere key": bare(401, "auth", message="invalid api token"),
    "cohere length": bare(
        400,
        "context_overflow",
        id="1",
        message="too many tokens: total number of tokens (prompt and prediction) cannot exceed 2048.",
    ),
    "hugging face length": bare(
        422,
        "context_overflow",
        error="Input validation error: `inputs` must have less than 4096 tokens. Given: 4545",
        error_type="validation",
    ),
    "hugging face broken": bare(
        424, "server", error="Request failed during generation: Server error", error_type="generation"
    ),
    # OpenRouter
    "openrouter credit": routed(402, "auth", "Insufficient credits. This account never purchased credits."),
    "openrouter in flight": routed(
        402, "rate_limited", IN_FLIGHT, reason="in_flight_budget_exhausted", limit_source="openrouter_in_flight_budget"
    ),
    "openrouter flagged": routed(
        403,
        "refused",
        "openai/x requires moderation. Your input was flagged.",
        reasons=["violence"],
        flagged_input="...",
    ),
    "openrouter model": routed(404, "model_not_found", "No endpoints found for nousresearch/x:free."),
    "openrouter tools": routed(404, "request", "No endpoints found that support tool use."),
    "openrouter length": routed(
        400, "context_overflow", "Provider returned error", raw=json.dumps(LENGTH_TOLD), provider_name="x"
    ),
    "openrouter request": routed(
        400,
        "request",
        "Provider returned error",
        raw='{"error":{"code":"400","message":"Param Incorrect"}}',
        provider_name="Xiaomi",
    ),
    "openrouter late length": routed(
        200, "context_overflow", "Too long", code=400, error_type="context_length_exceeded"
    ),
    "openrouter late limit": routed(
        200,
        "rate_limited",
        "Provider returned error",
        code=429,
        raw="x is temporarily rate-limited upstream.",
        provider_name="x",
    ),
    "openrouter late outage": routed(
        200, "server", "Provider disconnected", code=502, error_type="provider_unavailable"
    ),
    # servers of one's own
    "vllm length": told(400, "context_overflow", VLLM, 400, "BadRequestError"),
    "vllm no room": flat(400, "context_overflow", "max_tokens must be at least 1, got -186.", "BadRequestError", 400),
    "vllm model": flat(404, "model_not_found", "The model `x` does not exist.", "NotFoundError", 404),
    "llama.cpp length": wrapped(
        400,
        "context_overflow",
        code=400,
        message="the request exceeds the available context size, try increasing it",
        type="exceed_context_size_error",
        n_prompt_tokens=14429,
        n_ctx=8192,
    ),
    "llama.cpp old length": wrapped(
        500,
        "context_overflow",
        code=500,
        message="the request exceeds the available context size.",
        type="exceed_context_size_error",
        n_prompt_tokens=1407,
        n_ctx=256,
    ),
    "llama.cpp loading": wrapped(503, "server", code=503, message="Loading model", type="unavailable_error"),
    "ollama model": told(404, "model_not_found", 'model "llama3" not found, try pulling it first', None, "api_error"),
    "lm studio length": bare(
        400,
        "context_overflow",
        error="However, the model is loaded with context length of only 7866 tokens, which is not enough.",
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_an_error_is_classified_by_its_vendors_fields(shape: str) -> None:
    status, kind, body = SHAPES[shape]
    text = json.dumps(body)
    fault = fault_in_answer("x", text) if status == 200 else fault_of_answer("x", status, {}, text)
    assert fault.kind == kind


def test_input_repeated_in_an_error_does_not_change_its_kind() -> None:
    echoed = [{"type": "string_type", "loc": ["body", "stop"], "msg": "Input should be a list", "input": "moderation"}]
    for body in ({"detail": echoed}, {"message": {"detail": echoed}}, {"error": {"message": echoed}}):
        assert fault_of_answer("x", 422, {}, json.dumps(body)).kind == "request"
