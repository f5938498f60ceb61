"""Vendor errors, from documentation and public reports: each is classified correctly.

Names, numbers and ids are changed; the structure and the relevant words are original.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from routewright.backends.providers.faults import fault_in_answer, fault_of_answer


def told(message: str, code: Any = None, type: str | None = "invalid_request_error", **more: Any) -> dict[str, Any]:
    """OpenAI's shape, and of most who speak its protocol."""
    return {"error": {"message": message, "type": type, "param": None, "code": code} | more}


def claude(type: str, message: str) -> dict[str, Any]:
    """Anthropic's shape."""
    return {"type": "error", "error": {"type": type, "message": message}, "request_id": "req_1"}


def google(code: int, status: str, message: str, *reasons: str) -> dict[str, Any]:
    """Google's shape."""
    made = "type.googleapis.com/google.rpc.ErrorInfo"
    details = [{"@type": made, "reason": reason, "domain": "googleapis.com"} for reason in reasons]
    return {"error": {"code": code, "message": message, "status": status} | ({"details": details} if details else {})}


def routed(code: int, message: str, **metadata: Any) -> dict[str, Any]:
    """OpenRouter's shape."""
    return {"error": {"message": message, "code": code, "metadata": metadata}, "user_id": "user_1"}


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
GONE = "The model `qwen-qwq-32b` has been decommissioned and is no longer supported."
SUSPENDED = (
    "Account a is suspended, possibly due to reaching the monthly spending limit or failure to pay past invoices."
)
SCHEMA = [{"type": "extra_forbidden", "loc": ["body", "n"], "msg": "Extra inputs are not permitted", "input": "x"}]
THOUGHT = "The `reasoning_content` in the thinking mode must be passed back to the API."
QUOTA = "You exceeded your current quota, please check your plan and billing details."
IN_FLIGHT = "This request would exceed your available credits given your current in-flight requests."
VLLM = "You passed 1015 input tokens and requested 10 output tokens. However, the model's context length is only 1024"

SHAPES: dict[str, tuple[int, Any, str]] = {
    # OpenAI
    "openai key": (401, told("Incorrect API key provided: sk-1.", "invalid_api_key"), "auth"),
    "openai no credit": (429, told(QUOTA, "insufficient_quota", "insufficient_quota"), "auth"),
    "openai not paid": (429, told("Your account is not active.", "billing_not_active", "billing_not_active"), "auth"),
    "openai limit": (
        429,
        told("Rate limit reached for gpt-4o on requests per min.", "rate_limit_exceeded", "requests"),
        "rate_limited",
    ),
    "openai over a minute": (429, told(OPENAI_TPM, "rate_limit_exceeded", "tokens"), "request"),
    "openai length": (400, told(LENGTH, "context_length_exceeded"), "context_overflow"),
    "openai string": (
        400,
        told("Invalid 'messages[1].content': string too long.", "string_above_max_length"),
        "context_overflow",
    ),
    "openai model": (
        404,
        told("The model `x` does not exist or you do not have access to it.", "model_not_found"),
        "model_not_found",
    ),
    "openai project": (
        403,
        told("Project `proj_1` does not have access to model `x`", "model_not_found"),
        "model_not_found",
    ),
    "openai endpoint": (
        404,
        told("This is not a chat model and thus not supported in the v1/chat/completions endpoint."),
        "model_not_found",
    ),
    "openai temperature": (
        400,
        told(
            "Unsupported value: 'temperature' does not support 0.1 with this model.",
            "unsupported_value",
        ),
        "request",
    ),
    "openai cap": (
        400,
        told(
            "Unsupported parameter: 'max_tokens' is not supported with this model.",
            "unsupported_parameter",
        ),
        "request",
    ),
    "openai flagged": (
        400,
        told("Invalid prompt: your prompt was flagged as potentially violating our usage policy.", "invalid_prompt"),
        "refused",
    ),
    "openai country": (
        403,
        told(
            "Country, region, or territory not supported", "unsupported_country_region_territory", "request_forbidden"
        ),
        "auth",
    ),
    "openai server": (
        500,
        told("The server had an error while processing your request. Sorry about that!", None, "server_error"),
        "server",
    ),
    "openai overloaded": (
        503,
        told("The engine is currently overloaded, please try again later", None, "server_error"),
        "server",
    ),
    # Azure
    "azure limit": (
        429,
        {
            "error": {
                "code": "429",
                "message": "Requests to the ChatCompletions_Create Operation have exceeded token rate limit.",
            }
        },
        "rate_limited",
    ),
    "azure key": (
        401,
        {"error": {"code": "401", "message": "Access denied due to invalid subscription key or wrong API endpoint."}},
        "auth",
    ),
    "azure gateway key": (
        401,
        {"statusCode": 401, "message": "Unauthorized. Access token is missing, invalid or expired."},
        "auth",
    ),
    "azure deployment": (
        404,
        {"error": {"code": "DeploymentNotFound", "message": "The API deployment for this resource does not exist."}},
        "model_not_found",
    ),
    "azure timeout": (408, {"error": {"code": "Timeout", "message": "The operation was timeout."}}, "timeout"),
    # Anthropic
    "claude length": (
        400,
        claude("invalid_request_error", "prompt is too long: 208310 tokens > 200000 maximum"),
        "context_overflow",
    ),
    "claude both": (
        400,
        claude(
            "invalid_request_error",
            "input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000",
        ),
        "context_overflow",
    ),
    "claude credit": (
        400,
        claude("invalid_request_error", "Your credit balance is too low to access the Anthropic API."),
        "auth",
    ),
    "claude disabled": (400, claude("invalid_request_error", "This organization has been disabled."), "auth"),
    "claude output": (400, claude("invalid_request_error", "Output blocked by content filtering policy"), "refused"),
    "claude prefill": (
        400,
        claude(
            "invalid_request_error",
            "This model does not support assistant message prefill. The conversation must end with a user message.",
        ),
        "request",
    ),
    "claude cap": (
        400,
        claude(
            "invalid_request_error", "max_tokens: 100000 > 8192, which is the maximum allowed number of output tokens"
        ),
        "request",
    ),
    "claude key": (401, claude("authentication_error", "invalid x-api-key"), "auth"),
    "claude permission": (
        403,
        claude("permission_error", "Your API key does not have permission to use the specified resource."),
        "auth",
    ),
    "claude model": (404, claude("not_found_error", "model: claude-x"), "model_not_found"),
    "claude conflict": (409, claude("conflict_error", "Conflict"), "server"),
    "claude large": (413, claude("request_too_large", "Request exceeds the maximum size"), "context_overflow"),
    "claude limit": (
        429,
        claude(
            "rate_limit_error",
            "This request would exceed your organization's rate limit of 30,000 input tokens per minute",
        ),
        "rate_limited",
    ),
    "claude overloaded": (529, claude("overloaded_error", "Overloaded"), "server"),
    # Google
    "google key": (
        400,
        google(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key.", "API_KEY_INVALID"),
        "auth",
    ),
    "google expired": (400, google(400, "INVALID_ARGUMENT", "API key expired. Please renew the API key."), "auth"),
    "google leaked": (
        403,
        google(403, "PERMISSION_DENIED", "Your API key was reported as leaked. Please use another API key."),
        "auth",
    ),
    "google suspended": (
        403,
        google(403, "PERMISSION_DENIED", "Permission denied: Consumer has been suspended.", "CONSUMER_SUSPENDED"),
        "auth",
    ),
    "google place": (
        400,
        google(400, "FAILED_PRECONDITION", "User location is not supported for the API use."),
        "auth",
    ),
    "google length": (
        400,
        google(
            400,
            "INVALID_ARGUMENT",
            "The input token count (1200293) exceeds the maximum number of tokens allowed (1048576).",
        ),
        "context_overflow",
    ),
    "google cloud length": (
        400,
        google(400, "INVALID_ARGUMENT", "The input token count is 40000 but model only supports up to 32768."),
        "context_overflow",
    ),
    "google parts": (
        400,
        google(
            400, "INVALID_ARGUMENT", "* GenerateContentRequest.contents[1].parts: contents.parts must not be empty."
        ),
        "request",
    ),
    "google in a list": (400, [google(400, "INVALID_ARGUMENT", "Request contains an invalid argument.")], "request"),
    "google model": (
        404,
        google(
            404,
            "NOT_FOUND",
            "models/gemini-x is not found for API version v1beta, or is not supported for generateContent.",
        ),
        "model_not_found",
    ),
    "google quota": (429, google(429, "RESOURCE_EXHAUSTED", QUOTA), "rate_limited"),
    "google cancelled": (499, google(499, "CANCELLED", "The operation was cancelled."), "server"),
    "google overloaded": (
        503,
        google(503, "UNAVAILABLE", "The model is overloaded. Please try again later."),
        "server",
    ),
    # xAI
    "xai unsafe": (403, {"code": DENIED, "error": UNSAFE}, "refused"),
    "xai no credit": (403, {"code": DENIED, "error": "Your newly created teams doesn't have any credits yet."}, "auth"),
    "xai spent": (429, {"code": "Some resource has been exhausted", "error": SPENT}, "auth"),
    "xai key": (
        400,
        {"code": "Client specified an invalid argument", "error": "Incorrect API key provided: xa***1."},
        "auth",
    ),
    "xai length": (
        400,
        {
            "code": "Client specified an invalid argument",
            "error": "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
        },
        "context_overflow",
    ),
    # Groq
    "groq over a minute": (413, told(TPM, "rate_limit_exceeded", "tokens"), "request"),
    "groq limit": (429, told(LIMIT, "rate_limit_exceeded", "tokens"), "rate_limited"),
    "groq length": (
        400,
        told("Please reduce the length of the messages or completion.", "context_length_exceeded"),
        "context_overflow",
    ),
    "groq gone": (400, told(GONE, "model_decommissioned"), "model_not_found"),
    "groq blocked": (
        403,
        told(
            "The model `x` is blocked at the organization level.", "model_permission_blocked_org", "permissions_error"
        ),
        "model_not_found",
    ),
    "groq capacity": (498, told("Flex tier capacity exceeded", "capacity_exceeded"), "rate_limited"),
    # Mistral
    "mistral limit": (
        429,
        {
            "object": "error",
            "message": "Rate limit exceeded",
            "type": "rate_limited",
            "param": None,
            "code": "1300",
            "raw_status_code": 429,
        },
        "rate_limited",
    ),
    "mistral capacity": (
        429,
        {
            "object": "error",
            "message": "Service tier capacity exceeded for this model.",
            "type": "invalid_request_error",
            "param": None,
            "code": None,
        },
        "rate_limited",
    ),
    "mistral field": (
        422,
        {
            "object": "error",
            "message": {"detail": SCHEMA},
            "type": "invalid_request_error",
            "param": None,
            "code": None,
        },
        "request",
    ),
    "mistral call id": (
        400,
        {
            "object": "error",
            "message": "Tool call id was turn1_0 but must be a-z, A-Z, 0-9, with a length of 9.",
            "type": "invalid_function_call",
            "param": None,
            "code": "3280",
        },
        "request",
    ),
    "mistral length": (
        400,
        {
            "object": "error",
            "message": "Prompt contains 65538 tokens, too large for model with 32768 maximum context length",
            "type": "invalid_request_prompt",
            "code": "3051",
        },
        "context_overflow",
    ),
    "mistral key": (401, {"detail": "Unauthorized"}, "auth"),
    # DeepSeek, Moonshot, Alibaba, Z.ai, MiniMax
    "deepseek balance": (402, told("Insufficient Balance", "invalid_request_error", "unknown_error"), "auth"),
    "deepseek risk": (400, told("Content Exists Risk", "invalid_request_error"), "refused"),
    "deepseek thought": (400, told(THOUGHT, "invalid_request_error"), "request"),
    "moonshot length": (
        400,
        told("Invalid request: Your request exceeded model token limit: 262144 (requested: 269030)"),
        "context_overflow",
    ),
    "moonshot old length": (400, told("model max length exceeded, max length:8192"), "context_overflow"),
    "moonshot risk": (
        400,
        told("The request was rejected because it was considered high risk", 400, "content_filter"),
        "refused",
    ),
    "moonshot overloaded": (
        429,
        told("The engine is currently overloaded, please try again later", None, "engine_overloaded_error"),
        "rate_limited",
    ),
    "alibaba length": (
        400,
        told(
            "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 983616]",
            "invalid_parameter_error",
        ),
        "context_overflow",
    ),
    "alibaba risk": (
        400,
        told(
            "<400> InternalError.Algo.DataInspectionFailed: Input text data may contain inappropriate content.",
            "data_inspection_failed",
        ),
        "refused",
    ),
    "alibaba model": (
        403,
        {"code": "Model.AccessDenied", "message": "Model access denied.", "request_id": "1"},
        "model_not_found",
    ),
    "zai length": (400, {"error": {"code": "1261", "message": "Prompt exceeds max length"}}, "context_overflow"),
    "minimax length": (
        200,
        {"base_resp": {"status_code": 2013, "status_msg": "invalid params, context window exceeds limit"}},
        "context_overflow",
    ),
    "minimax request": (200, {"base_resp": {"status_code": 2013, "status_msg": "invalid params"}}, "request"),
    # Cerebras, Together, Fireworks, Cohere, Hugging Face
    "cerebras limit": (
        429,
        {
            "message": "Tokens per minute limit exceeded - too many tokens processed.",
            "type": "too_many_tokens_error",
            "param": "quota",
            "code": "token_quota_exceeded",
        },
        "rate_limited",
    ),
    "together model": (
        400,
        told(
            "Unable to access non-serverless model x. Please create and start a new dedicated endpoint.",
            "model_not_available",
        ),
        "model_not_found",
    ),
    "together length": (
        422,
        told("Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048."),
        "context_overflow",
    ),
    "fireworks suspended": (412, told(SUSPENDED, "PRECONDITION_FAILED", "error"), "auth"),
    "fireworks model": (
        404,
        {
            "message": "Model not found, inaccessible, and/or not deployed",
            "param": "model",
            "code": "NOT_FOUND",
            "type": "error",
        },
        "model_not_found",
    ),
    "cohere key": (401, {"message": "invalid api token"}, "auth"),
    "cohere length": (
        400,
        {
            "id": "1",
            "message": "too many tokens: total number of tokens (prompt and prediction) cannot exceed 2048.",
        },
        "context_overflow",
    ),
    "hugging face length": (
        422,
        {
            "error": "Input validation error: `inputs` must have less than 4096 tokens. Given: 4545",
            "error_type": "validation",
        },
        "context_overflow",
    ),
    "hugging face broken": (
        424,
        {"error": "Request failed during generation: Server error", "error_type": "generation"},
        "server",
    ),
    # OpenRouter
    "openrouter credit": (402, routed(402, "Insufficient credits. This account never purchased credits."), "auth"),
    "openrouter in flight": (
        402,
        routed(402, IN_FLIGHT, reason="in_flight_budget_exhausted", limit_source="openrouter_in_flight_budget"),
        "rate_limited",
    ),
    "openrouter flagged": (
        403,
        routed(403, "openai/x requires moderation. Your input was flagged.", reasons=["violence"], flagged_input="..."),
        "refused",
    ),
    "openrouter model": (404, routed(404, "No endpoints found for nousresearch/x:free."), "model_not_found"),
    "openrouter tools": (404, routed(404, "No endpoints found that support tool use."), "request"),
    "openrouter length": (
        400,
        routed(400, "Provider returned error", raw=json.dumps(told(LENGTH)), provider_name="x"),
        "context_overflow",
    ),
    "openrouter request": (
        400,
        routed(
            400,
            "Provider returned error",
            raw='{"error":{"code":"400","message":"Param Incorrect"}}',
            provider_name="Xiaomi",
        ),
        "request",
    ),
    "openrouter late length": (200, routed(400, "Too long", error_type="context_length_exceeded"), "context_overflow"),
    "openrouter late limit": (
        200,
        routed(429, "Provider returned error", raw="x is temporarily rate-limited upstream.", provider_name="x"),
        "rate_limited",
    ),
    "openrouter late outage": (200, routed(502, "Provider disconnected", error_type="provider_unavailable"), "server"),
    # servers of one's own
    "vllm length": (400, told(VLLM, 400, "BadRequestError"), "context_overflow"),
    "vllm no room": (
        400,
        {
            "object": "error",
            "message": "max_tokens must be at least 1, got -186.",
            "type": "BadRequestError",
            "param": None,
            "code": 400,
        },
        "context_overflow",
    ),
    "vllm model": (
        404,
        {
            "object": "error",
            "message": "The model `x` does not exist.",
            "type": "NotFoundError",
            "param": None,
            "code": 404,
        },
        "model_not_found",
    ),
    "llama.cpp length": (
        400,
        {
            "error": {
                "code": 400,
                "message": "the request exceeds the available context size, try increasing it",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 14429,
                "n_ctx": 8192,
            }
        },
        "context_overflow",
    ),
    "llama.cpp old length": (
        500,
        {
            "error": {
                "code": 500,
                "message": "the request exceeds the available context size.",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": 1407,
                "n_ctx": 256,
            }
        },
        "context_overflow",
    ),
    "llama.cpp loading": (
        503,
        {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}},
        "server",
    ),
    "ollama model": (404, told('model "llama3" not found, try pulling it first', None, "api_error"), "model_not_found"),
    "lm studio length": (
        400,
        {"error": "However, the model is loaded with context length of only 7866 tokens, which is not enough."},
        "context_overflow",
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_an_error_is_classified_by_its_vendors_fields(shape: str) -> None:
    status, body, kind = SHAPES[shape]
    text = json.dumps(body)
    fault = fault_in_answer("x", text) if status == 200 else fault_of_answer("x", status, {}, text)
    assert fault.kind == kind


def test_input_repeated_in_an_error_does_not_change_its_kind() -> None:
    echoed = [{"type": "string_type", "loc": ["body", "stop"], "msg": "Input should be a list", "input": "moderation"}]
    for body in ({"detail": echoed}, {"message": {"detail": echoed}}, {"error": {"message": echoed}}):
        assert fault_of_answer("x", 422, {}, json.dumps(body)).kind == "request"
