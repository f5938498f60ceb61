"""Classifies provider errors, by three tables that the documentation's reference is made from. ``SIGNS`` map a status,
a vendor's code or words to a kind of fault, ``FAULTS`` map the kind to the reaction. ``ENDINGS`` map a finish reason to
a normal end or a fault."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

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
    quote: str = ""
    """The vendor's own message (``ProviderFault.quote``)."""
    hint: str = ""
    cause: BaseException | None = None
    bug: str = ""
    """What to log of a provider that raised something else than a ``ProviderFault``."""


class Sign(NamedTuple):
    """One row of the table from errors to kinds of fault."""

    place: str
    """The part of an error that it is matched against: ``status``, ``code``, ``text``, or ``param``, the place in the
    request that the error is about."""
    kind: FaultKind
    what: str
    """A regular expression for a part of the message, or for all of another place, codes in lower case."""


# Vendors report anything with a 400, and repeat words of the request in its message: the names of its tools, the
# properties of their schemas, a parameter that they do not know. One tool is called `check_moderation`, one property
# `context_size`; a search of the message alone calls that a refusal, which ends the call without a fallback, or an
# overflow, which leaves out models with smaller windows. So what is exact goes first: a code about the request's form,
# then the place that the error is about, unless it is a text or a size, then phrases of validators, and only then
# words. See test_an_error_is_read_by_what_it_is_about.
_SIGNS = (
    # Higher rows take precedence. A row is a place, a kind, and several codes or statuses, or one expression. Comments
    # name the vendors of the words below them.
    # --- codes that are more specific than their status
    # OpenAI, with 429: out of credit, or nobody pays; Anthropic, two, with 429: nothing more this month; Moonshot,
    # Z.ai, with 429: out of credit; the last one: several
    "code auth insufficient_quota billing_hard_limit_reached billing_not_active contract_spend_limit_reached",
    "code auth enforced_spend_limit_reached exceeded_current_quota_error 1113 access_terminated",
    # OpenRouter, with 402: other calls hold it; llama.cpp, at times with 500; Z.ai
    "code rate_limited openrouter_in_flight_budget",
    "code context_overflow exceed_context_size_error 1261",
    # --- messages that are more specific than their status
    # xAI, with 429 or 403, and Fireworks, with 412
    "text auth used all available credits|reached its monthly spending limit|reaching the monthly spending limit",
    # Groq, with 413, and OpenAI, with 429: more at once than a minute's limit
    "text request request too large for .{0,200}tokens per min",
    # llama.cpp and llama-cpp-python, servers before vLLM and SGLang, and LiteLLM, with 500
    "text context_overflow context (size|length|window) (has been |was )?exceeded|maximum context length is",
    "text context_overflow exceeds? (the )?(available )?context (size|window)|longer than the maximum model length",
    "text context_overflow (greater|longer) than the (model's )?context length"
    "|windowexceeded(?!.{0,200}string too long)",
    # --- statuses with one meaning; out of credit (402): this key does not get served, another may
    "status malformed [123]..",
    "status server [5-9]..",
    "status auth 401 402",
    "status timeout 408",
    # OpenAI and Anthropic: their own clients try again; Hugging Face: what it depends on failed; Google and Cohere:
    # cancelled, and not by us
    "status server 409 424 499",
    "status rate_limited 429",
    # --- codes, if the status is ambiguous; base_resp.* are MiniMax's, with 200
    # OpenAI and many others; Anthropic; GitHub, two
    "code context_overflow context_length_exceeded request_too_large",
    "code context_overflow model_max_prompt_tokens_exceeded tokens_limit_reached",
    # OpenAI; Azure, two; Alibaba; New API; StepFun; Volcengine, two; Z.ai
    "code refused content_policy_violation invalid_prompt moderation_blocked base_resp.1026 base_resp.1027",
    "code refused content_filter responsibleaipolicyviolation data_inspection_failed sensitive_words_detected",
    "code refused censorship_blocked sensitivecontentdetected inputtextsensitivecontentdetected 1301",
    # OpenAI, within answers of its Responses API
    "code refused bio_policy misalignment_policy_violation image_content_policy_violation",
    # Groq, with 400 or, of permissions, 403; OpenAI; Mistral; Azure; Together, with 400; Alibaba, with 403
    "code model_not_found model_decommissioned model_terms_required model_permission_blocked_project",
    "code model_not_found model_permission_blocked_org model_not_found invalid_model deploymentnotfound",
    "code model_not_found model_not_available model.accessdenied",
    # Google, the first with 400; Anthropic, the second with 400, the third as many others
    "code auth api_key_invalid permission_denied unauthenticated",
    "code auth billing_error organization_on_hold authentication_error",
    # OpenAI; Alibaba, with 400: out of credit; MiniMax, the last one: out of credit
    "code auth invalid_api_key arrearage base_resp.1004 base_resp.1008",
    # many, two; Google; Cerebras, two; Amazon
    "code rate_limited rate_limit_error rate_limit_exceeded resource_exhausted base_resp.1002",
    "code rate_limited too_many_tokens_error token_quota_exceeded throttlingexception",
    # Anthropic, the first elsewhere with 504; many; Google, the second: overloaded
    "code server timeout_error overloaded_error internal_server_error service_unavailable",
    "code server internal unavailable deadline_exceeded base_resp.1000 base_resp.1024",
    # Groq, with 400: the model wrote a tool call, or JSON, that is none
    "code malformed tool_use_failed json_validate_failed",
    "code timeout base_resp.1001",
    # OpenAI and others with its codes, of a parameter or a schema
    "code request unknown_parameter unsupported_parameter unsupported_value missing_required_parameter invalid_type",
    "code request invalid_value invalid_function_parameters invalid_json_schema array_above_max_length",
    "code request array_below_min_length integer_above_max_value integer_below_min_value decimal_above_max_value",
    # --- any place in the request but a text, a size, or the model; then OpenAI, of a text
    "param request (?!(PLACES)$).+",
    "code context_overflow string_above_max_length",
    # --- messages, if the code is ambiguous
    r"text request invalid schema|json schema|input_schema|function_?declarations|\btools(\[\d+\]|\.\d+)"
    "|extra_forbidden",
    "text request (unknown |unsupported ?|missing required |extra )(param|argument|field|name|value|property|input)",
    "text request unrecognized (request|field|arg)|unexpected (keyword|arg|field)|invalid (type|value)"
    "|m value for `?max_",
    "text refused content (management )?polic|contentpolicyviolation|usage (polic|guideline)|content exists risk",
    r"""text refused content filter(?!\w*['"`])|(?<![\w'"`.\[])moderation(?![-\w'"`\]])|was flagged"""
    "|considered high risk",
    "text refused (unsafe|sensitive|inappropriate) (content|information|words)|unsafe request|safety system",
    # Amazon, Cerebras and others, of tokens too
    "text rate_limited please wait before trying|tokens?[ _]per[ _](min|day|hour)"
    "|rate limit (is |was )?(reached|exceeded)",
    "text context_overflow context[ _](length|window|size|limit)"
    "|maximum (prompt|input|allowed|allowed input|model) length",
    r"text context_overflow (prompt|input)( \(.{0,40}\))? (is |was )?too (long|large)|prompt exceeds"
    "|input exceeds the max",
    r"text context_overflow (prompt|input|message|request)s? (token )?"
    r"(length|tokens?|count|size)\b.{0,60}(exceed|er than)",
    "text context_overflow too many (input )?tokens|number of (input )?tokens.{0,60}exceed|more than max tokens",
    r"text context_overflow model token limit|token limit exceeded|max length exceeded|must have less than \d+ tokens",
    r"text context_overflow range of input length|reduce the length of|tokens`? \+ `max_new_tokens|max_(model|seq)_len",
    "text context_overflow max_tokens must be at least 1, got -|input token count.{0,40}only supports|string too long",
    "text context_overflow request payload size exceeds|body too large for .{0,80}tokens|上下文|输入.{0,6}(过长|超)",
    "text context_overflow maximum supported sequence|token length too long|total message size"
    "|max (message token|input char)",
    "text auth (incorrect|invalid) api key|api key (is )?(not valid|invalid|expired)|balance is too low|enable billing",
    "text auth reached your specified .{0,20}usage limits|organization has been disabled"
    "|user location is not supported",
    "text model_not_found (invalid|unknown) model|no endpoints found for|non-serverless model|model access denied",
    r"text model_not_found model\b.{0,80}\b"
    "(not found|not exist|does not exist|not a valid|not supported in|decommissioned)",
    # OpenAI's codes, within answers of its Responses API
    r"text request (invalid|empty|unsupported|base64|download)_image|\bimage_(too|parse|file)_",
    # --- vague codes, if the message says nothing
    # Anthropic, and Ollama of a model that is not there; many; MiniMax: too long a prompt among others
    "code server api_error server_error",
    "code request base_resp.2013",
    # --- statuses, if there is nothing else; Groq, with 498: over capacity
    "status auth 403",
    "status context_overflow 413",
    "status rate_limited 498",
)
_PLACES = (
    r"model|prompt|system|instructions|inputs|body|request|quota|max_\w+|input_tokens|none|null|(messages|input|contents)"
    r"[^a-z]*(content|parts|output|(tool_calls\W*\d+\W*function.)?arguments)?[^a-z]*(text|content)?"
)


def _read_row(row: str) -> Sign:
    cells = row.replace("PLACES", _PLACES).split(" ", 2)
    return Sign(cells[0], FaultKind(cells[1]), cells[2].replace(" ", " " if cells[0] in ("text", "param") else "|"))


SIGNS = tuple(map(_read_row, _SIGNS))

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

_FLAGS = re.IGNORECASE | re.DOTALL


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
    return any(sign.place == "code" and re.fullmatch(sign.what, code) for sign in SIGNS)


def kind_of_status(status: int, code: str, text: str, param: str = "") -> FaultKind:
    """Classify an HTTP answer with a status other than 200. ``code`` in lower case; ``text``: its message; ``param``:
    the place in the request that it is about."""
    kind = _kind(status=str(status), code=code, text=text, param=param)
    if kind is None and status == 404 and "model" in text.lower():
        return FaultKind.MODEL_NOT_FOUND
    return kind or FaultKind.REQUEST


def kind_of_words(code: str, text: str, param: str = "") -> FaultKind | None:
    """Classify an error without a status; None if unknown."""
    return _kind(status="", code=code, text=text, param=param)


def _kind(**parts: str) -> FaultKind | None:
    """The kind of the first sign that matches a part of an error."""
    for sign in SIGNS:
        match = re.search if sign.place == "text" else re.fullmatch
        if match(sign.what, parts[sign.place], _FLAGS):
            return sign.kind
    return None
