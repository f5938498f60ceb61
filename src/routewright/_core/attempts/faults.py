"""Classifies provider errors, by three tables that the documentation's reference is made from. ``SIGNS`` map a status,
a vendor's code or words to a kind of fault, ``FAULTS`` map the kind to the reaction. ``ENDINGS`` map a finish reason to
a normal end or a fault."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple, get_args

from routewright._core.structured_output import Repair
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


class Fault(NamedTuple):
    """Why an attempt failed."""

    kind: FaultKind
    text: str = ""
    answered: bool = False
    """The provider had begun to answer, so it may bill."""
    retry_after: float | None = None
    retry: bool | None = None
    """True if the provider says that a retry may help; None: as the kind says."""
    repair: Repair | None = None
    """How to ask the same model to repair its answer."""
    public: str = ""
    """``text`` without addresses; empty if it has none."""
    hint: str = ""
    cause: BaseException | None = None


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


SIGNS: tuple[Sign, ...] = (  # higher rows take precedence; a comment names the vendors of the words below it
    # codes that are more specific than their status
    *_signs(
        "code",
        FaultKind.AUTH,
        # OpenAI, with 429: out of credit, or nobody pays
        "insufficient_quota billing_hard_limit_reached billing_not_active "
        # Anthropic, with 429: nothing more this month
        "contract_spend_limit_reached enforced_spend_limit_reached "
        # Moonshot, Z.ai, with 429: out of credit; the last one: several
        "exceeded_current_quota_error 1113 access_terminated",
    ),
    # OpenRouter, with 402: other calls hold it
    *_signs("code", FaultKind.RATE_LIMITED, "openrouter_in_flight_budget"),
    # llama.cpp, at times with 500
    *_signs("code", FaultKind.CONTEXT_OVERFLOW, "exceed_context_size_error"),
    # messages that are more specific than their status, if it is below 500
    # xAI, with 429 or 403, and Fireworks, with 412
    Sign(
        "text",
        r"used all available credits|reached its monthly spending limit|reaching the monthly spending limit",
        FaultKind.AUTH,
    ),
    # Groq, with 413, and OpenAI, with 429: more at once than a minute's limit
    Sign("text", r"request too large for .{0,200}tokens per min", FaultKind.REQUEST),
    # statuses with one meaning
    Sign("status", "401", FaultKind.AUTH),
    Sign("status", "402", FaultKind.AUTH),  # out of credit: this key does not get served, another may
    Sign("status", "408", FaultKind.TIMEOUT),
    Sign("status", "409", FaultKind.SERVER),  # OpenAI and Anthropic: their own clients try again
    Sign("status", "424", FaultKind.SERVER),  # Hugging Face: what it depends on failed
    Sign("status", "429", FaultKind.RATE_LIMITED),
    Sign("status", "499", FaultKind.SERVER),  # Google and Cohere: cancelled, and not by us
    # codes, if the status is ambiguous; base_resp.* are MiniMax's, with 200
    # OpenAI and many others; OpenAI; Anthropic
    *_signs("code", FaultKind.CONTEXT_OVERFLOW, "context_length_exceeded string_above_max_length request_too_large"),
    *_signs(
        "code",
        FaultKind.REFUSED,
        # OpenAI, the last three within answers of its Responses API
        "content_policy_violation invalid_prompt moderation_blocked "
        "bio_policy misalignment_policy_violation image_content_policy_violation "
        # Azure; Alibaba; MiniMax
        "content_filter data_inspection_failed base_resp.1026 base_resp.1027",
    ),
    *_signs(
        "code",
        FaultKind.MODEL_NOT_FOUND,
        # Groq, with 400 or, of permissions, 403
        "model_decommissioned model_terms_required model_permission_blocked_org model_permission_blocked_project "
        # OpenAI; Mistral; Azure; Together, with 400; Alibaba, with 403
        "model_not_found invalid_model deploymentnotfound model_not_available model.accessdenied",
    ),
    *_signs(
        "code",
        FaultKind.AUTH,
        # Google, the first with 400
        "api_key_invalid permission_denied unauthenticated "
        # Anthropic, the second with 400, the third as many others
        "billing_error organization_on_hold authentication_error "
        # OpenAI; Alibaba, with 400: out of credit; MiniMax, the last one: out of credit
        "invalid_api_key arrearage base_resp.1004 base_resp.1008",
    ),
    # many; many; Google; MiniMax
    *_signs("code", FaultKind.RATE_LIMITED, "rate_limit_error rate_limit_exceeded resource_exhausted base_resp.1002"),
    *_signs(
        "code",
        FaultKind.SERVER,
        # Anthropic, the first elsewhere with 504; many; MiniMax
        "timeout_error overloaded_error internal_server_error service_unavailable base_resp.1000 base_resp.1024 "
        # Google, the second: overloaded
        "internal unavailable deadline_exceeded",
    ),
    # Groq, with 400: the model wrote a tool call, or JSON, that is none
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
    # OpenAI's codes, within answers of its Responses API
    Sign("text", r"(invalid|empty|unsupported|base64|download)_image|\bimage_(too|parse|file)_", FaultKind.REQUEST),
    # vague codes, if the message says nothing
    # Anthropic, and Ollama of a model that is not there; many
    *_signs("code at last", FaultKind.SERVER, "api_error server_error"),
    # MiniMax: too long a prompt among others
    *_signs("code at last", FaultKind.REQUEST, "base_resp.2013"),
    # statuses, if there is nothing else
    Sign("status at last", "403", FaultKind.AUTH),
    Sign("status at last", "413", FaultKind.CONTEXT_OVERFLOW),
    Sign("status at last", "498", FaultKind.RATE_LIMITED),  # Groq: over capacity
)

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "other"]

ENDINGS: dict[FinishReason | FaultKind, str] = {  # in lower case; any other word is delivered as ``other``
    "stop": (
        # many; OpenAI's Responses; Together; AI21; Baidu
        "stop completed eos endoftext normal "
        # Anthropic and Amazon; Anthropic, Cohere and Hugging Face; Hugging Face; Cohere
        "end_turn stop_sequence eos_token complete"
    ),
    # many; Cohere; Anthropic and Amazon; OpenAI, before there were tools
    "tool_calls": "tool_calls tool_call tool_use function_call",
    "length": (
        # many, among them Anthropic, Google and Cohere (the fourth)
        "length max_new_tokens max_length max_tokens "
        # OpenAI's Responses; Mistral; Anthropic and Z.ai; Anthropic
        "max_output_tokens model_length model_context_window_exceeded pause_turn "
        # llama.cpp; Cohere; Google; another Router
        "limit error_limit continuation budget"
    ),
    "content_filter": (
        # many; Amazon, two; Anthropic; Z.ai and Tencent; Cohere
        "content_filter moderation blocked content_filtered guardrail_intervened refusal sensitive error_toxic "
        # Google
        "safety recitation blocklist prohibited_content spii escalation model_armor image_safety "
        "image_prohibited_content image_recitation"
    ),
    FaultKind.TRUNCATED: (
        # many, among them vLLM and SGLang (the first), OpenRouter, Mistral, vLLM and Cohere (the last)
        "abort aborted cancel canceled cancelled interrupted internal_error server_error deadline_exceeded max_time "
        "overloaded none error "
        # OpenAI's Responses, two; Cohere, two; Z.ai; DeepSeek; Alibaba, of an answer that goes on; Google
        "failed incomplete user_cancel timeout network_error insufficient_system_resource null "
        "finish_reason_unspecified"
    ),
    FaultKind.MALFORMED: (
        # Google, the second at its address for OpenAI's clients
        "malformed_function_call function_call_filter malformed_response unexpected_tool_call too_many_tool_calls "
        # Google; Amazon, two
        "no_image malformed_model_output malformed_tool_use"
    ),
    # Google
    FaultKind.REQUEST: "language missing_thought_signature",
    # what the account asked for before
    FaultKind.AUTH: "pup_limited_disabled",
}
ENDING = re.compile(r"[A-Za-z][\w.:-]{0,63}")
"""Matches an unknown finish reason that is safe to show: one word, no text."""
_ENDINGS: dict[str, FinishReason | FaultKind] = {word: end for end, words in ENDINGS.items() for word in words.split()}
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


_TEXTS = _patterns(SIGNS)
_FIRST_TEXTS = _patterns(_FIRST)


def ending_of(word: str) -> FinishReason | FaultKind | None:
    """The meaning of a finish reason; None if unknown. Google adds details after a colon."""
    return _ENDINGS.get(word.partition(":")[0].strip().lower())


def hint_of(error: BaseException) -> str:
    """A hint for an exception from a custom provider's code; empty if it does not indicate a bug."""
    return f"fix the provider: {type(error).__name__} is a bug in its code" if isinstance(error, _MISTAKES) else ""


def place_of(error: BaseException) -> str:
    """The type and place of an exception, without its message, which may contain a prompt or key."""
    name = type(error).__name__
    traceback = error.__traceback__
    if traceback is None:
        return name
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    file = re.split(r"[/\\]", traceback.tb_frame.f_code.co_filename)[-1]
    return f"{name} in {file}, line {traceback.tb_lineno}"


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
    kind = _kind_of_text(text, _FIRST_TEXTS) or _BY["status"].get(str(status)) or kind_of_words(code, text)
    if kind is None and status == 404 and "model" in text.lower():
        return FaultKind.MODEL_NOT_FOUND
    return kind or _BY["status at last"].get(str(status), FaultKind.REQUEST)


def kind_of_words(code: str, text: str) -> FaultKind | None:
    """Classify an error without a status; None if unknown."""
    return _BY["code"].get(code) or _kind_of_text(text, _TEXTS) or _BY["code at last"].get(code)


def _kind_of_text(text: str, patterns: Iterable[tuple[re.Pattern[str], FaultKind]]) -> FaultKind | None:
    return next((kind for pattern, kind in patterns if pattern.search(text)), None)
