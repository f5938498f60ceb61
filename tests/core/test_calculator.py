"""The calculator: exact, bounded, and safe for any input."""

from __future__ import annotations

import time
from contextlib import suppress
from decimal import Decimal
from fractions import Fraction
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routewright._core.agent.calculator import CalculatorError, calculate
from tests.tables import table

PIECES = [
    *"0123456789.+-*/%^(),eE_ x", "**", "//", "1e9", "1e9999", "sqrt", "sin(", "factorial(", "pi", "exp(", "ln(",
    "round(", "max(", "tan(", "9" * 40, "__import__", "é", "\n",
]  # fmt: skip


@table(
    ("expression", "value"),
    [
        ("0.1 + 0.2", "0.3"),
        ("2 ** 3 ** 2", "512"),
        ("-2 ** 2", "-4"),
        ("-7 // 2", "-4"),
        ("10 ** 49 // 7", str(10**49 // 7)),
        ("-1 // 1e9999", "-1"),
        ("-7 % 3", "2"),
        ("7 % -3", "-2"),
        ("-7.5 % 2", "0.5"),
        ("1e9999 % 7e-9999", f"{10**19998 % 7}E-9999"),
        ("-1 % 1e9999", "1E+9999"),
        ("1e100 // 3", "3." + "3" * 33 + "E+99"),
        ("1 / 3", "0." + "3" * 34),
        ("round(2.675, 2)", "2.68"),
        ("floor(-1.5) + ceil(1.2)", "0"),
        ("sum(1, 2, 3)", "6"),
        ("factorial(20)", "2432902008176640000"),
        ("factorial(1000)", "4.02387260077093773543702433923004E+2567"),
        ("sin(pi / 6)", "0.5"),
        ("cos(0)", "1"),
        ("1_000 * 2", "2000"),
        ("1e400 * 1e400", "1E+800"),
    ],
)
def test_an_expression_has_its_exact_value(expression: str, value: str) -> None:
    assert calculate(expression) == value


@table(
    ("expression", "said"),
    [
        ("", "empty"),
        ("(1", "')' is missing"),
        ("1 2", "unexpected '2'"),
        ("a + 1", "'a' is not known"),
        ("1 / 0", "division by zero"),
        ("1 % 0", "division by zero"),
        ("ln(0)", "undefined"),
        ("1e9999 // 1e-9999", "exponent above"),
        ("factorial(1001)", "whole number"),
        ("__import__('os')", "not"),
        ("(" * 60 + "1" + ")" * 60, "levels"),
        ("1" * 1_001, "1000 characters"),
        ("1  @ 2 ", "'@' at 4"),
        ("0 // 0", "division by zero"),
    ],
)
def test_an_invalid_expression_is_refused_with_a_reason(expression: str, said: str) -> None:
    with pytest.raises(CalculatorError, match=said.replace("(", r"\(").replace(")", r"\)")):
        calculate(expression)


def test_any_expression_takes_little_time(full: bool) -> None:
    rng, slowest = Random(1), 0.0
    for _ in range(100_000 if full else 3_000):
        expression = "".join(rng.choices(PIECES, k=rng.randint(1, 40)))
        began = time.process_time()
        with suppress(CalculatorError):
            assert isinstance(calculate(expression), str)
        slowest = max(slowest, time.process_time() - began)
    if full:
        assert slowest < 0.05


def test_a_chain_of_remainders_takes_little_time() -> None:
    began = time.process_time()
    calculate("1e9999" + "%7e-9999" * 120)
    calculate("9e9999" + "//7e9900" * 120)
    assert time.process_time() - began < 0.1


INTEGERS = st.integers(-(10**45), 10**45) | st.integers(-1_000, 1_000)
DECIMALS = st.decimals(-(10**9), 10**9, places=6)


@given(st.tuples(INTEGERS, INTEGERS.filter(bool)) | st.tuples(DECIMALS, DECIMALS.filter(bool)))
def test_quotients_and_remainders_are_those_of_python(pair: tuple[Any, Any]) -> None:
    value, by = map(Fraction, pair)
    written = [f"({number:f})" if isinstance(number, Decimal) else f"({number})" for number in pair]
    assert Fraction(calculate("//".join(written))) == value // by
    assert Fraction(calculate("%".join(written))) == value % by
