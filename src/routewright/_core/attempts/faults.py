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


def _signs(place: Place, kind: FaultKind, words: str) -> list[Sign]:
    return [Sign(place, word, kind) for word in words.split()]


SIGNS: tuple[Sign, ...] = (  # higher rows take precedence
    # codes that are more specific than their status
    # insufficient_quota: OpenAI, with 429: out of credit; billing_hard_limit_reached: OpenAI;
    # contract_spend_limit_reached: Anthropic, with 429: nothing more this month; enforced_spend_limit_reached:
    # Anthropic, likewise; exceeded_current_quota_error: Moonshot, with 429: out of credit; 1113: Z.ai, with 429: out
    # of credit; billing_not_active: OpenAI, with 429: nobody pays
    *_signs(
        "code",
        FaultKind.AUTH,
        "insufficient_quota billing_hard_limit_reached access_terminated contract_spend_limit_reached "
        "enforced_spend_limit_reached exceeded_current_quota_error 1113 billing_not_active",
    ),
    # openrouter_in_flight_budget: OpenRouter, with 402: other calls hold it
    *_signs("code", FaultKind.RATE_LIMITED, "openrouter_in_flight_budget"),
    # exceed_context_size_error: llama.cpp, at times with 500
    *_signs("code", FaultKind.CONTEXT_OVERFLOW, "exceed_context_size_error"),
    # messages that are more specific than their status, if it is below 500
    # xAI, with 429 or 403, and Fireworks, with 412
    Sign(
        "text",
        r"used all available credits|reached its monthly spending limit|reaching the monthly spending limit",
        FaultKind.AUTH,
    ),
    # Groq, with 413, and OpenAI, with 429: more at once than a minute's limit
    Sign(
        "text",
        r"request too large for .{0,200}tokens per min",
        FaultKind.REQUEST,
    ),
    # statuses with one meaning
    Sign("status", "401", FaultKind.AUTH),
    Sign("status", "402", FaultKind.AUTH),  # out of credit: this key does not get served, another may
    Sign("status", "408", FaultKind.TIMEOUT),
    Sign("status", "409", FaultKind.SERVER),  # OpenAI and Anthropic: their own clients try again
    Sign("status", "424", FaultKind.SERVER),  # Hugging Face: what it depends on failed
    Sign("status", "429", FaultKind.RATE_LIMITED),
    Sign("status", "499", FaultKind.SERVER),  # Google and Cohere: cancelled, and not by us
    # codes, if the status is ambiguous
    # context_length_exceeded: OpenAI and many others; string_above_max_length: OpenAI; request_too_large: Anthropic
    *_signs("code", FaultKind.CONTEXT_OVERFLOW, "context_length_exceeded string_above_max_length request_too_large"),
    # content_filter: Azure; content_policy_violation: OpenAI; data_inspection_failed: Alibaba; invalid_prompt:
    # OpenAI; moderation_blocked: OpenAI
    *_signs(
        "code",
        FaultKind.REFUSED,
        "content_filter content_policy_violation data_inspection_failed invalid_prompt moderation_blocked "
        "base_resp.1026 base_resp.1027",
    ),
    # model_not_found: OpenAI; invalid_model: Mistral; deploymentnotfound: Azure; model_decommissioned: Groq, with
    # 400; model_permission_blocked_org: Groq, with 403; model_permission_blocked_project: Groq, with 403;
    # model_terms_required: Groq, with 400; model_not_available: Together, with 400; model.accessdenied: Alibaba, with
    # 403
    *_signs(
        "code",
        FaultKind.MODEL_NOT_FOUND,
        "model_not_found invalid_model deploymentnotfound model_decommissioned model_permission_blocked_org "
        "model_permission_blocked_project model_terms_required model_not_available model.accessdenied",
    ),
    # invalid_api_key: OpenAI; api_key_invalid: Google, with 400; permission_denied: Google; unauthenticated: Google;
    # arrearage: Alibaba, with 400: out of credit; billing_error: Anthropic; organization_on_hold: Anthropic, with
    # 400; base_resp.1008: out of credit
    *_signs(
        "code",
        FaultKind.AUTH,
        "invalid_api_key api_key_invalid permission_denied unauthenticated arrearage authentication_error "
        "billing_error organization_on_hold base_resp.1004 base_resp.1008",
    ),
    # resource_exhausted: Google
    *_signs("code", FaultKind.RATE_LIMITED, "rate_limit_error rate_limit_exceeded resource_exhausted base_resp.1002"),
    # timeout_error: Anthropic, elsewhere with 504; overloaded_error: Anthropic; internal: Google; unavailable:
    # Google: overloaded; deadline_exceeded: Google; base_resp.*: MiniMax, with 200
    *_signs(
        "code",
        FaultKind.SERVER,
        "timeout_error internal_server_error overloaded_error service_unavailable internal unavailable "
        "deadline_exceeded base_resp.1000 base_resp.1024",
    ),
    # tool_use_failed: Groq, with 400: the model wrote a tool call that is none; json_validate_failed: Groq, with 400:
    # the model wrote JSON that is none
    *_signs("code", FaultKind.MALFORMED, "tool_use_failed json_validate_failed"),
    *_signs("code", FaultKind.TIMEOUT, "base_resp.1001"),
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
    # api_error: Anthropic; Ollama's word for a model that is not there, too
    *_signs("code at last", FaultKind.SERVER, "api_error server_error"),
    # base_resp.2013: MiniMax, too long a prompt among others
    *_signs("code at last", FaultKind.REQUEST, "base_resp.2013"),
    # statuses, if there is nothing else
    Sign("status at last", "403", FaultKind.AUTH),
    Sign("status at last", "413", FaultKind.CONTEXT_OVERFLOW),
    Sign("status at last", "498", FaultKind.RATE_LIMITED),  # Groq: over capacity
)

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "other"]

ENDINGS: dict[FinishReason | FaultKind, str] = {  # in lower case; any other word is delivered as ``other``
    # end_turn: Anthropic, Amazon; stop_sequence: Anthropic, Cohere, Hugging Face; eos: Together; eos_token: Hugging
    # Face; endoftext: AI21; complete: Cohere; completed: OpenAI's Responses; normal: Baidu
    "stop": "stop end_turn stop_sequence eos eos_token endoftext complete completed normal",
    # tool_call: Cohere; tool_use: Anthropic, Amazon; function_call: OpenAI, before there were tools
    "tool_calls": "tool_calls tool_call tool_use function_call",
    # max_tokens: Anthropic, Google, Cohere; max_output_tokens: OpenAI's Responses; model_length: Mistral;
    # model_context_window_exceeded: Anthropic, Z.ai; limit: llama.cpp; error_limit: Cohere; continuation: Google;
    # pause_turn: Anthropic; budget: another Router
    "length": (
        "length max_tokens max_output_tokens max_new_tokens max_length model_length model_context_window_exceeded "
        "limit error_limit continuation pause_turn budget"
    ),
    # content_filtered: Amazon; guardrail_intervened: Amazon; refusal: Anthropic; sensitive: Z.ai, Tencent;
    # error_toxic: Cohere; safety and the rest: Google
    "content_filter": (
        "content_filter content_filtered guardrail_intervened refusal sensitive error_toxic moderation blocked "
        "safety recitation blocklist prohibited_content spii escalation model_armor image_safety "
        "image_prohibited_content image_recitation"
    ),
    # abort: vLLM, SGLang; user_cancel: Cohere; error: OpenRouter, Mistral, vLLM, Cohere; network_error: Z.ai; failed:
    # OpenAI's Responses; incomplete: OpenAI's Responses; timeout: Cohere; insufficient_system_resource: DeepSeek;
    # null: Alibaba, of an answer that goes on; finish_reason_unspecified: Google
    FaultKind.TRUNCATED: (
        "abort aborted cancel canceled cancelled user_cancel interrupted error internal_error server_error "
        "network_error failed incomplete timeout deadline_exceeded max_time overloaded insufficient_system_resource "
        "null none finish_reason_unspecified"
    ),
    # malformed_model_output, malformed_tool_use: Amazon; the others: Google; function_call_filter: at its address for
    # OpenAI's clients
    FaultKind.MALFORMED: (
        "malformed_function_call function_call_filter malformed_response unexpected_tool_call too_many_tool_calls "
        "no_image malformed_model_output malformed_tool_use"
    ),
    FaultKind.REQUEST: "language missing_thought_signature",
    # pup_limited_disabled: of what the account asked for before
    FaultKind.AUTH: "pup_limited_disabled",
}
ENDING = re.compile(r"[A-Za-z][\w.:-]{0,63}")
"""Matches an unknown finish reason that is safe to show: one word, no text."""
_ENDINGS: dict[str, FinishReason | FaultKind] = {
    word: means for means, words in ENDINGS.items() for word in words.split()
}
_ENDINGS["other"] = "other"

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
