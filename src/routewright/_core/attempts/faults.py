"""Classifies provider errors, by three tables that the documentation's reference is made from. ``SIGNS`` map a status,
a vendor's code or words to a kind of fault, ``FAULTS`` map the kind to the reaction. ``ENDINGS`` map a finish reason to
a normal end or a fault."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

from routewright.wire import FallbackReason, FaultKind


class Rule(NamedTuple):
    """The reaction to one kind of fault."""

    retry: bool
    """A retry of the same model may help."""
    fall_back: bool
    """Another model may help."""
    blames: bool
    """It counts against the provider's health."""
    billed: bool = False
    """The provider had begun to answer, so it may bill, even if no chunk could be read."""
    repair: bool = False
    """The same model may repair its answer if it is shown the error."""
    opens_credential: bool = False
    """It concerns the credential, not the model."""
    reason: FallbackReason = "upstream_5xx"
    """The reason in events (spec 6.3)."""


FAULTS: dict[FaultKind, Rule] = {
    FaultKind.CONNECT: Rule(retry=True, fall_back=True, blames=True),
    FaultKind.LOCAL: Rule(retry=True, fall_back=True, blames=False),
    FaultKind.TIMEOUT: Rule(retry=False, fall_back=True, blames=True, reason="timeout"),
    FaultKind.RESET: Rule(retry=True, fall_back=True, blames=True),
    FaultKind.RATE_LIMITED: Rule(retry=True, fall_back=True, blames=True),
    FaultKind.SERVER: Rule(retry=True, fall_back=True, blames=True),
    FaultKind.AUTH: Rule(retry=False, fall_back=True, blames=True, opens_credential=True),
    FaultKind.REQUEST: Rule(retry=False, fall_back=True, blames=False),
    FaultKind.MODEL_NOT_FOUND: Rule(retry=False, fall_back=True, blames=True),
    FaultKind.REFUSED: Rule(retry=False, fall_back=False, blames=False, reason="safety"),
    FaultKind.CONTEXT_OVERFLOW: Rule(retry=False, fall_back=True, blames=False),
    FaultKind.MALFORMED: Rule(retry=True, fall_back=True, blames=True, billed=True),
    FaultKind.TRUNCATED: Rule(retry=True, fall_back=True, blames=True, billed=True),
    FaultKind.INVALID_OUTPUT: Rule(retry=False, fall_back=True, blames=False, billed=True, repair=True),
    FaultKind.BLOCKED: Rule(retry=False, fall_back=True, blames=False, billed=True, reason="safety"),
}

Place = Literal["status", "code", "text", "code at last", "status at last"]
"""The part of an error that a sign is matched against."""


class Sign(NamedTuple):
    """One row of the table from errors to kinds of fault."""

    place: Place
    what: str
    """A status, a vendor's code in lower case, or a regular expression for the message."""
    kind: FaultKind
    whose: str = ""
    """The vendors that use it; empty if most do."""


SIGNS: tuple[Sign, ...] = (  # higher rows take precedence
    # codes that are more specific than their status
    Sign("code", "insufficient_quota", FaultKind.AUTH, "OpenAI, with 429: out of credit"),
    Sign("code", "billing_hard_limit_reached", FaultKind.AUTH, "OpenAI"),
    Sign("code", "access_terminated", FaultKind.AUTH),
    Sign("code", "contract_spend_limit_reached", FaultKind.AUTH, "Anthropic, with 429: nothing more this month"),
    Sign("code", "enforced_spend_limit_reached", FaultKind.AUTH, "Anthropic, likewise"),
    Sign("code", "exceeded_current_quota_error", FaultKind.AUTH, "Moonshot, with 429: out of credit"),
    Sign("code", "1113", FaultKind.AUTH, "Z.ai, with 429: out of credit"),
    Sign("code", "billing_not_active", FaultKind.AUTH, "OpenAI, with 429: nobody pays"),
    Sign("code", "openrouter_in_flight_budget", FaultKind.RATE_LIMITED, "OpenRouter, with 402: other calls hold it"),
    Sign("code", "exceed_context_size_error", FaultKind.CONTEXT_OVERFLOW, "llama.cpp, at times with 500"),
    # messages that are more specific than their status, if it is below 500
    Sign(
        "text",
        r"used all available credits|reached its monthly spending limit|reaching the monthly spending limit",
        FaultKind.AUTH,
        "xAI, with 429 or 403, and Fireworks, with 412",
    ),
    Sign(
        "text",
        r"request too large for .{0,200}tokens per min",
        FaultKind.REQUEST,
        "Groq, with 413, and OpenAI, with 429: more at once than a minute's limit",
    ),
    # statuses with one meaning
    Sign("status", "401", FaultKind.AUTH),
    Sign("status", "402", FaultKind.AUTH, "out of credit: this key does not get served, another may"),
    Sign("status", "408", FaultKind.TIMEOUT),
    Sign("status", "409", FaultKind.SERVER, "OpenAI and Anthropic: their own clients try again"),
    Sign("status", "424", FaultKind.SERVER, "Hugging Face: what it depends on failed"),
    Sign("status", "429", FaultKind.RATE_LIMITED),
    Sign("status", "499", FaultKind.SERVER, "Google and Cohere: cancelled, and not by us"),
    # codes, if the status is ambiguous
    Sign("code", "context_length_exceeded", FaultKind.CONTEXT_OVERFLOW, "OpenAI and many others"),
    Sign("code", "string_above_max_length", FaultKind.CONTEXT_OVERFLOW, "OpenAI"),
    Sign("code", "request_too_large", FaultKind.CONTEXT_OVERFLOW, "Anthropic"),
    Sign("code", "content_filter", FaultKind.REFUSED, "Azure"),
    Sign("code", "content_policy_violation", FaultKind.REFUSED, "OpenAI"),
    Sign("code", "data_inspection_failed", FaultKind.REFUSED, "Alibaba"),
    Sign("code", "invalid_prompt", FaultKind.REFUSED, "OpenAI"),
    Sign("code", "moderation_blocked", FaultKind.REFUSED, "OpenAI"),
    Sign("code", "model_not_found", FaultKind.MODEL_NOT_FOUND, "OpenAI"),
    Sign("code", "invalid_model", FaultKind.MODEL_NOT_FOUND, "Mistral"),
    Sign("code", "deploymentnotfound", FaultKind.MODEL_NOT_FOUND, "Azure"),
    Sign("code", "model_decommissioned", FaultKind.MODEL_NOT_FOUND, "Groq, with 400"),
    Sign("code", "model_permission_blocked_org", FaultKind.MODEL_NOT_FOUND, "Groq, with 403"),
    Sign("code", "model_permission_blocked_project", FaultKind.MODEL_NOT_FOUND, "Groq, with 403"),
    Sign("code", "model_terms_required", FaultKind.MODEL_NOT_FOUND, "Groq, with 400"),
    Sign("code", "model_not_available", FaultKind.MODEL_NOT_FOUND, "Together, with 400"),
    Sign("code", "model.accessdenied", FaultKind.MODEL_NOT_FOUND, "Alibaba, with 403"),
    Sign("code", "invalid_api_key", FaultKind.AUTH, "OpenAI"),
    Sign("code", "api_key_invalid", FaultKind.AUTH, "Google, with 400"),
    Sign("code", "permission_denied", FaultKind.AUTH, "Google"),
    Sign("code", "unauthenticated", FaultKind.AUTH, "Google"),
    Sign("code", "arrearage", FaultKind.AUTH, "Alibaba, with 400: out of credit"),
    Sign("code", "authentication_error", FaultKind.AUTH),
    Sign("code", "billing_error", FaultKind.AUTH, "Anthropic"),
    Sign("code", "organization_on_hold", FaultKind.AUTH, "Anthropic, with 400"),
    Sign("code", "rate_limit_error", FaultKind.RATE_LIMITED),
    Sign("code", "rate_limit_exceeded", FaultKind.RATE_LIMITED),
    Sign("code", "timeout_error", FaultKind.SERVER, "Anthropic, elsewhere with 504"),
    Sign("code", "resource_exhausted", FaultKind.RATE_LIMITED, "Google"),
    Sign("code", "internal_server_error", FaultKind.SERVER),
    Sign("code", "overloaded_error", FaultKind.SERVER, "Anthropic"),
    Sign("code", "service_unavailable", FaultKind.SERVER),
    Sign("code", "internal", FaultKind.SERVER, "Google"),
    Sign("code", "unavailable", FaultKind.SERVER, "Google: overloaded"),
    Sign("code", "deadline_exceeded", FaultKind.SERVER, "Google"),
    Sign("code", "tool_use_failed", FaultKind.MALFORMED, "Groq, with 400: the model wrote a tool call that is none"),
    Sign("code", "json_validate_failed", FaultKind.MALFORMED, "Groq, with 400: the model wrote JSON that is none"),
    Sign("code", "base_resp.1000", FaultKind.SERVER, "MiniMax, with 200, as those that follow"),
    Sign("code", "base_resp.1001", FaultKind.TIMEOUT),
    Sign("code", "base_resp.1002", FaultKind.RATE_LIMITED),
    Sign("code", "base_resp.1004", FaultKind.AUTH),
    Sign("code", "base_resp.1008", FaultKind.AUTH, "out of credit"),
    Sign("code", "base_resp.1024", FaultKind.SERVER),
    Sign("code", "base_resp.1026", FaultKind.REFUSED),
    Sign("code", "base_resp.1027", FaultKind.REFUSED),
    # messages, if the code is ambiguous
    Sign(
        "text",
        r"content (management )?polic|usage (polic|guideline)|content exists risk|content[ _]filter|moderation"
        r"|was flagged|safety system|unsafe request|(unsafe|sensitive|inappropriate) content|considered high risk",
        FaultKind.REFUSED,
    ),
    Sign(
        "text",
        r"context[ _](length|window|size|limit)|maximum (prompt|input) length|(prompt|input) is too long|prompt exceeds"
        r"|too many (input )?tokens|model token limit|range of input length|reduce the length of"
        r"|tokens`? \+ `max_new_tokens|must have less than \d+ tokens|max_tokens must be at least 1, got -"
        r"|input token count.{0,40}(exceeds|only supports)|request payload size exceeds|max length exceeded",
        FaultKind.CONTEXT_OVERFLOW,
    ),
    Sign(
        "text",
        r"(incorrect|invalid) api key|api key (is )?(not valid|invalid|expired)|credit balance is too low"
        r"|reached your specified .{0,20}usage limits|organization has been disabled"
        r"|user location is not supported|enable billing",
        FaultKind.AUTH,
    ),
    Sign(
        "text",
        r"(invalid|unknown) model|no endpoints found for|non-serverless model|model access denied"
        r"|model\b.{0,80}\b(not found|not exist|does not exist|not a valid|not supported in|decommissioned)",
        FaultKind.MODEL_NOT_FOUND,
    ),
    # vague codes, if the message says nothing
    Sign("code at last", "api_error", FaultKind.SERVER, "Anthropic; Ollama's word for a model that is not there, too"),
    Sign("code at last", "server_error", FaultKind.SERVER),
    Sign("code at last", "base_resp.2013", FaultKind.REQUEST, "MiniMax, too long a prompt among others"),
    # statuses, if there is nothing else
    Sign("status at last", "403", FaultKind.AUTH),
    Sign("status at last", "413", FaultKind.CONTEXT_OVERFLOW),
    Sign("status at last", "498", FaultKind.RATE_LIMITED, "Groq: over capacity"),
)

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "other"]


class Ending(NamedTuple):
    """The meaning of a finish reason."""

    word: str
    """In lower case."""
    means: FinishReason | FaultKind
    whose: str = ""
    """The vendors that use it; empty if many do."""


_CUT = FaultKind.TRUNCATED

ENDINGS: tuple[Ending, ...] = (  # any other word is delivered as ``other``
    Ending("stop", "stop"),
    Ending("end_turn", "stop", "Anthropic, Amazon"),
    Ending("stop_sequence", "stop", "Anthropic, Cohere, Hugging Face"),
    Ending("eos", "stop", "Together"),
    Ending("eos_token", "stop", "Hugging Face"),
    Ending("endoftext", "stop", "AI21"),
    Ending("complete", "stop", "Cohere"),
    Ending("completed", "stop", "OpenAI's Responses"),
    Ending("normal", "stop", "Baidu"),
    Ending("tool_calls", "tool_calls"),
    Ending("tool_call", "tool_calls", "Cohere"),
    Ending("tool_use", "tool_calls", "Anthropic, Amazon"),
    Ending("function_call", "tool_calls", "OpenAI, before there were tools"),
    Ending("length", "length"),
    Ending("max_tokens", "length", "Anthropic, Google, Cohere"),
    Ending("max_output_tokens", "length", "OpenAI's Responses"),
    Ending("max_new_tokens", "length"),
    Ending("max_length", "length"),
    Ending("model_length", "length", "Mistral"),
    Ending("model_context_window_exceeded", "length", "Anthropic, Z.ai"),
    Ending("limit", "length", "llama.cpp"),
    Ending("error_limit", "length", "Cohere"),
    Ending("continuation", "length", "Google"),
    Ending("pause_turn", "length", "Anthropic"),
    Ending("budget", "length", "another Router"),
    Ending("content_filter", "content_filter"),
    Ending("content_filtered", "content_filter", "Amazon"),
    Ending("guardrail_intervened", "content_filter", "Amazon"),
    Ending("refusal", "content_filter", "Anthropic"),
    Ending("sensitive", "content_filter", "Z.ai, Tencent"),
    Ending("error_toxic", "content_filter", "Cohere"),
    Ending("moderation", "content_filter"),
    Ending("blocked", "content_filter"),
    Ending("safety", "content_filter", "Google, as those that follow"),
    Ending("recitation", "content_filter"),
    Ending("blocklist", "content_filter"),
    Ending("prohibited_content", "content_filter"),
    Ending("spii", "content_filter"),
    Ending("escalation", "content_filter"),
    Ending("model_armor", "content_filter"),
    Ending("image_safety", "content_filter"),
    Ending("image_prohibited_content", "content_filter"),
    Ending("image_recitation", "content_filter"),
    Ending("abort", _CUT, "vLLM, SGLang"),
    Ending("aborted", _CUT),
    Ending("cancel", _CUT),
    Ending("canceled", _CUT),
    Ending("cancelled", _CUT),
    Ending("user_cancel", _CUT, "Cohere"),
    Ending("interrupted", _CUT),
    Ending("error", _CUT, "OpenRouter, Mistral, vLLM, Cohere"),
    Ending("internal_error", _CUT),
    Ending("server_error", _CUT),
    Ending("network_error", _CUT, "Z.ai"),
    Ending("failed", _CUT, "OpenAI's Responses"),
    Ending("incomplete", _CUT, "OpenAI's Responses"),
    Ending("timeout", _CUT, "Cohere"),
    Ending("deadline_exceeded", _CUT),
    Ending("max_time", _CUT),
    Ending("overloaded", _CUT),
    Ending("insufficient_system_resource", _CUT, "DeepSeek"),
    Ending("null", _CUT, "Alibaba, of an answer that goes on"),
    Ending("none", _CUT),
    Ending("finish_reason_unspecified", _CUT, "Google"),
    Ending("malformed_function_call", FaultKind.MALFORMED, "Google, as those that follow"),
    Ending("function_call_filter", FaultKind.MALFORMED, "the same, at its address for OpenAI's clients"),
    Ending("malformed_response", FaultKind.MALFORMED),
    Ending("unexpected_tool_call", FaultKind.MALFORMED),
    Ending("too_many_tool_calls", FaultKind.MALFORMED),
    Ending("no_image", FaultKind.MALFORMED),
    Ending("language", FaultKind.REQUEST),
    Ending("missing_thought_signature", FaultKind.REQUEST),
    Ending("pup_limited_disabled", FaultKind.AUTH, "of what the account asked for before"),
    Ending("malformed_model_output", FaultKind.MALFORMED, "Amazon"),
    Ending("malformed_tool_use", FaultKind.MALFORMED, "Amazon"),
)
ENDING = re.compile(r"[A-Za-z][\w.:-]{0,63}")
"""Matches an unknown finish reason that is safe to show: one word, no text."""
_ENDINGS: dict[str, FinishReason | FaultKind] = {ending.word: ending.means for ending in ENDINGS} | {"other": "other"}

_MISTAKES = (TypeError, AttributeError, NameError, LookupError, ImportError, AssertionError, NotImplementedError)
"""Exceptions that a retry does not avoid."""

_FIRST = SIGNS[: next(n for n, sign in enumerate(SIGNS) if sign.place == "status")]
"""The signs that take precedence over the status."""
_BY = {place: {sign.what: sign.kind for sign in SIGNS if sign.place == place} for place in get_args(Place)}
_CODES = _BY["code"] | _BY["code at last"]
_FIRST_CODES = {sign.what for sign in _FIRST if sign.place == "code"}


def _patterns(signs: Iterable[Sign]) -> tuple[tuple[re.Pattern[str], FaultKind], ...]:
    flags = re.IGNORECASE | re.DOTALL
    return tuple((re.compile(sign.what, flags), sign.kind) for sign in signs if sign.place == "text")


_TEXTS, _FIRST_TEXTS = _patterns(SIGNS), _patterns(_FIRST)


def ending_of(word: str) -> FinishReason | FaultKind | None:
    """The meaning of a finish reason; None if unknown. Google adds details after a colon."""
    return _ENDINGS.get(word.partition(":")[0].strip().lower())


def hint_of(error: BaseException) -> str:
    """A hint for an exception from a custom provider's code; empty if it does not indicate a bug."""
    return f"fix the provider: {type(error).__name__} is a bug in its code" if isinstance(error, _MISTAKES) else ""


def raised_in(error: BaseException) -> str:
    """The type and place of an exception, without its message, which may contain a prompt or key."""
    name, place = type(error).__name__, error.__traceback__
    if place is None:
        return name
    while place.tb_next is not None:
        place = place.tb_next
    file = re.split(r"[/\\]", place.tb_frame.f_code.co_filename)[-1]
    return f"{name} in {file}, line {place.tb_lineno}"


def is_known(code: str) -> bool:
    """True if a vendor's code (in lower case) is in ``SIGNS``."""
    return code in _CODES


def kind_of_status(status: int, code: str, text: str) -> FaultKind:
    """Classify an HTTP answer with a status other than 200. ``code`` in lower case; ``text``: its message."""
    if code in _FIRST_CODES:
        return _BY["code"][code]
    if status >= 500:
        return FaultKind.SERVER
    if status < 400:
        return FaultKind.MALFORMED
    told = _kind_of_text(text, _FIRST_TEXTS) or _BY["status"].get(str(status))
    if told is not None:
        return told
    told = kind_of_words(code, text)
    if told is None and status == 404 and "model" in text.lower():
        return FaultKind.MODEL_NOT_FOUND
    return told or _BY["status at last"].get(str(status), FaultKind.REQUEST)


def kind_of_words(code: str, text: str) -> FaultKind | None:
    """Classify an error without a status; None if unknown."""
    return _BY["code"].get(code) or _kind_of_text(text, _TEXTS) or _BY["code at last"].get(code)


def _kind_of_text(text: str, patterns: Iterable[tuple[re.Pattern[str], FaultKind]]) -> FaultKind | None:
    return next((kind for pattern, kind in patterns if pattern.search(text)), None)
