"""The built-in guardrails: kinds of personal data, and lists of words."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import starmap
from typing import get_args

from ._core.guardrails.custom import check_custom, custom_pattern
from ._core.guardrails.detectors import PATTERNS
from ._core.guardrails.screen import STAGES, RuleGuardrail
from ._core.guardrails.texts import Phrases
from ._core.request.rules import check_choice, check_phrases, check_text, refuse
from .errors import Problem, ValidationFailed
from .protocols import Guardrail
from .wire import GuardrailAction, PatternKind, Stage
from .wire.problems import Problems, no_choice, shown


class PatternGuardrail(RuleGuardrail):
    """Finds e-mail addresses, telephone, card and bank account numbers, and keys.

        guardrail = PatternGuardrail("email", "card")
        guardrail.check("Write to anna@example.com.", "input")  # Redact: [email]

    The default is all kinds: ``email, phone, card, iban, api_key``. ``custom`` has regular expressions of your own, by
    the name of their finding; each must match in one way only, so that no text can make it slow:

        PatternGuardrail(custom={"ticket": r"\bTICKET-\\d{4,8}\b"}).check("TICKET-1234", "input")  # Redact: [ticket]
    """

    def __init__(
        self,
        *kinds: PatternKind,
        action: GuardrailAction = "redact",
        stages: Collection[Stage] = STAGES,
        name: str = "patterns",
        custom: Mapping[str, str] | None = None,
    ) -> None:
        """Raises ``ValidationFailed`` for an unknown kind, action or stage, and for an expression that could be
        slow."""
        problems = _problems(name, action, stages)
        all_kinds = get_args(PatternKind)
        if kinds:
            check_choice("kinds", kinds, all_kinds, problems)
        if custom is not None:
            check_custom("custom", custom, problems)
        refuse(problems)
        built_in = [PATTERNS[kind] for kind in kinds or (() if custom else all_kinds)]
        super().__init__(name, [*built_in, *starmap(custom_pattern, (custom or {}).items())], action, stages)


class DenyList(RuleGuardrail):
    """Finds words and phrases, in any case, with any space between their words.

        guardrail = DenyList(["Project Nightjar"])
        guardrail.check("What is project  nightjar?", "input")  # Block

    Errors and traces do not show which phrase was found: the rule is the ``name``."""

    def __init__(
        self,
        phrases: Iterable[str],
        action: GuardrailAction = "block",
        stages: Collection[Stage] = STAGES,
        name: str = "deny_list",
    ) -> None:
        """Raises ``ValidationFailed`` for an invalid phrase, action or stage."""
        if isinstance(phrases, str) or not isinstance(phrases, Iterable):
            raise ValidationFailed.at("phrases", f"{shown(phrases)} is not a list", "pass a list")
        phrase_list = [*phrases]
        problems = _problems(name, action, stages)
        check_phrases("phrases", phrase_list, problems)
        refuse(problems)
        super().__init__(name, [Phrases(phrase_list, name)], action, stages)


def validate_guardrails(guardrails: object) -> tuple[Guardrail, ...]:
    """The argument ``guardrails``. Raises ``ValidationFailed`` for anything but a list of them."""
    if not isinstance(guardrails, Sequence) or isinstance(guardrails, str):
        hint = "pass a list: guardrails=[PatternGuardrail('email')]"
        raise ValidationFailed.at("guardrails", f"{shown(guardrails)} is not a list of guardrails", hint)
    for index, guardrail in enumerate(guardrails):
        path = f"guardrails[{index}]"
        if isinstance(guardrail, type) or not isinstance(guardrail, Guardrail):
            hint = "pass an object with name, stages, holds and check, such as a DenyList"
            raise ValidationFailed.at(path, f"{shown(guardrail)} is not a guardrail", hint)
        problems = _named_problems(f"{path}.name", guardrail.name, f"{path}.stages", guardrail.stages)
        holds: object = guardrail.holds
        if holds is not None and (type(holds) is not int or holds < 1):
            problem = f"must be a whole number of at least 1, or None, got {shown(holds)}"
            hint = "pass the length of the longest finding, or None if only a whole answer can be judged"
            problems.append(Problem(f"{path}.holds", problem, hint))
        refuse(problems)
    return tuple(guardrails)


def _problems(name: object, action: object, stages: object) -> Problems:
    """Problems of the arguments that all guardrails have."""
    problems = _named_problems("name", name, "stages", stages)
    if action not in get_args(GuardrailAction):
        problems.append(no_choice("action", action, get_args(GuardrailAction)))
    return problems


def _named_problems(name_path: str, name: object, stages_path: str, stages: object) -> Problems:
    problems: Problems = []
    if isinstance(name, str):
        check_text(name_path, name, problems)
    else:
        problems.append(Problem(name_path, f"must be a string, got {shown(name)}", 'for example "no-secrets"'))
    if isinstance(stages, str) or not isinstance(stages, Collection):
        problems.append(Problem(stages_path, f"{shown(stages)} is not a list", "pass a list"))
    else:
        check_choice(stages_path, [*stages], get_args(Stage), problems)
    return problems
