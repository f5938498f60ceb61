"""Evaluates an expression in exact decimals (contract 10). Length, depth and digits are bounded.

expression  = term (("+" | "-") term)*
term        = unary (("*" | "/" | "//" | "%") unary)*
unary       = ("+" | "-") unary | power
power       = atom ("**" | "^") unary | atom
atom        = number | name | name "(" [expression ("," expression)*] ")" | "(" expression ")"
"""

from __future__ import annotations

import decimal
import math
import re
from collections.abc import Callable
from decimal import Decimal

MOST_CHARACTERS = 1_000
MOST_DEPTH = 50  # nested parentheses, signs and powers
DIGITS = 50  # significant digits of each operation
SHOWN_DIGITS = 34
MOST_EXPONENT = 9_999
MOST_FACTORIAL = 1_000
_PLAIN_EXPONENT = 60  # results up to this exponent are written without one
_TOKEN = re.compile(
    r"\s*(?:(\d[\d_]*(?:\.[\d_]*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)|([A-Za-z_]\w*)|(\*\*|//|[-+*/%^(),]))"
)
_GUARD = 15  # extra digits for sine and cosine


class CalculatorError(Exception):
    """An error in an expression, worded for its author."""


def calculate(expression: str) -> str:
    """The value of an expression as text. Raises ``CalculatorError``. Takes a few milliseconds at most."""
    if len(expression) > MOST_CHARACTERS:
        raise CalculatorError(f"write an expression of at most {MOST_CHARACTERS} characters")
    context = decimal.Context(
        prec=DIGITS, Emax=MOST_EXPONENT, Emin=-MOST_EXPONENT,
        traps=[decimal.InvalidOperation, decimal.DivisionByZero, decimal.Overflow],
    )  # fmt: skip
    with decimal.localcontext(context) as local:
        try:
            value = _Parser(expression).value()
            if not value.is_finite():
                raise decimal.InvalidOperation
        except decimal.DivisionByZero:
            raise CalculatorError("division by zero") from None
        except decimal.Overflow:
            raise CalculatorError(f"the result has an exponent above {MOST_EXPONENT}") from None
        except decimal.InvalidOperation:
            raise CalculatorError("the result is undefined, or has too many digits") from None
        if local.flags[decimal.Inexact]:
            value = decimal.Context(prec=SHOWN_DIGITS).plus(value)
        if not value:
            return "0"
        value = value.normalize(decimal.Context(prec=DIGITS))
        return f"{value:f}" if -_PLAIN_EXPONENT <= value.adjusted() <= _PLAIN_EXPONENT else str(value)


class _Parser:
    """Parses and evaluates in one pass."""

    def __init__(self, expression: str) -> None:
        self._tokens: list[str] = []
        self._place = 0
        self._depth = 0
        at = 0
        expression = expression.rstrip()
        while at < len(expression):
            if (match := _TOKEN.match(expression, at)) is None:
                rest = expression[at:].lstrip()
                raise CalculatorError(f"{rest[0]!r} at {len(expression) - len(rest) + 1} is not part of an expression")
            self._tokens.append(match[0].strip())
            at = match.end()

    def value(self) -> Decimal:
        """The value of the whole expression."""
        if not self._tokens:
            raise CalculatorError("the expression is empty")
        result = self._sum()
        if self._place < len(self._tokens):
            raise CalculatorError(f"unexpected {self._tokens[self._place]!r}")
        return result

    def _peek(self) -> str:
        return self._tokens[self._place] if self._place < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self._place += 1
        return token

    def _expect(self, token: str) -> None:
        if self._take() != token:
            raise CalculatorError(f"{token!r} is missing")

    def _sum(self) -> Decimal:
        total = self._product()
        while self._peek() in ("+", "-"):
            total = total + self._product() if self._take() == "+" else total - self._product()
        return total

    def _product(self) -> Decimal:
        product = self._unary()
        while (operator := self._peek()) in ("*", "/", "//", "%"):
            self._take()
            other = self._unary()
            match operator:
                case "*":
                    product *= other
                case "/":
                    product /= other
                case "//":
                    with decimal.localcontext(prec=2 * DIGITS):  # for a full-precision quotient times the divisor
                        quotient = (product - _remainder(product, other)) / other
                    product = +quotient
                case _:
                    product = +_remainder(product, other)
        return product

    def _unary(self) -> Decimal:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise CalculatorError(f"more than {MOST_DEPTH} nested levels")
        try:
            if self._peek() in ("-", "+"):
                return -self._unary() if self._take() == "-" else self._unary()
            base = self._atom()
            if self._peek() in ("**", "^"):
                self._take()
                return base ** self._unary()
            return base
        finally:
            self._depth -= 1

    def _atom(self) -> Decimal:
        token = self._take()
        if token == "(":
            value = self._sum()
            self._expect(")")
            return value
        if token[:1].isdigit() or token[:1] == ".":
            return +Decimal(token.replace("_", ""))
        if token in _CONSTANTS:
            return +_CONSTANTS[token]
        if (function := _FUNCTIONS.get(token)) is None:
            if not token:
                raise CalculatorError("the expression is incomplete")
            raise CalculatorError(f"{token!r} is not known; use one of: {', '.join([*_FUNCTIONS, *_CONSTANTS])}")
        self._expect("(")
        arguments: list[Decimal] = []
        if self._peek() != ")":
            arguments.append(self._sum())
            while self._peek() == ",":
                self._take()
                arguments.append(self._sum())
        self._expect(")")
        counts, compute = function
        if len(arguments) not in counts:
            number = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
            raise CalculatorError(f"{token} takes {number} arguments")
        return compute(*arguments)


def _remainder(value: Decimal, by: Decimal) -> Decimal:
    """The exact remainder, with the sign of ``by``, like Python's ``%`` for integers."""
    if not by:
        raise decimal.DivisionByZero
    if abs(value) < abs(by):
        return value if not value or (value < 0) == (by < 0) else value + by
    dividend, at = _integer(value)
    divisor, place = _integer(by)
    least = min(at, place)
    divisor *= 10 ** (place - least)
    return Decimal(dividend * pow(10, at - least, abs(divisor)) % divisor).scaleb(least)


def _integer(value: Decimal) -> tuple[int, int]:
    """A number as an integer times a power of ten."""
    exponent = int(value.as_tuple().exponent)
    return int(value.scaleb(-exponent)), exponent


def _whole(value: Decimal, most: int, what: str) -> int:
    if value != value.to_integral_value() or not 0 <= value <= most:
        raise CalculatorError(f"{what} must be a whole number from 0 to {most}")
    return int(value)


def _factorial(value: Decimal) -> Decimal:
    return +Decimal(math.factorial(_whole(value, MOST_FACTORIAL, "the argument of factorial")))


def _round(value: Decimal, digits: Decimal = Decimal(0)) -> Decimal:
    return value.quantize(Decimal(1).scaleb(-_whole(digits, DIGITS, "the number of places")), decimal.ROUND_HALF_EVEN)


def _sine(value: Decimal, shift: int = 0) -> Decimal:
    """Sine, or cosine with ``shift`` 1, by its series around the nearest quarter turn."""
    if abs(value) > Decimal(10) ** 30:
        raise CalculatorError("the angle is above 10^30")
    with decimal.localcontext(prec=DIGITS + 30 + _GUARD):
        half_pi = _PI / 2
        quarters = (value / half_pi).to_integral_value(decimal.ROUND_HALF_EVEN)
        rest = value - quarters * half_pi
        quadrant = (int(quarters) + shift) % 4
        term = total = Decimal(1) if quadrant % 2 else rest
        power = 1 - quadrant % 2
        least = Decimal(10) ** -(DIGITS + _GUARD)
        while abs(term) > least:
            power += 2
            term *= -rest * rest / ((power - 1) * power)
            total += term
    return -total if quadrant >= 2 else +total


_PI = Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803482534211706798")
_CONSTANTS = {
    "pi": _PI,
    "e": Decimal("2.71828182845904523536028747135266249775724709369995957496696762772407663035354759457138217"),
}
_ONE = range(1, 2)
_ANY = range(1, MOST_CHARACTERS + 1)
_FUNCTIONS: dict[str, tuple[range, Callable[..., Decimal]]] = {
    "sqrt": (_ONE, Decimal.sqrt),
    "abs": (_ONE, abs),
    "round": (range(1, 3), _round),
    "floor": (_ONE, lambda value: value.to_integral_value(decimal.ROUND_FLOOR)),
    "ceil": (_ONE, lambda value: value.to_integral_value(decimal.ROUND_CEILING)),
    "min": (_ANY, lambda *values: min(values)),
    "max": (_ANY, lambda *values: max(values)),
    "sum": (_ANY, lambda *values: sum(values, Decimal(0))),
    "exp": (_ONE, Decimal.exp),
    "ln": (_ONE, Decimal.ln),
    "log10": (_ONE, Decimal.log10),
    "sin": (_ONE, _sine),
    "cos": (_ONE, lambda value: _sine(value, 1)),
    "tan": (_ONE, lambda value: _sine(value) / _sine(value, 1)),
    "factorial": (_ONE, _factorial),
}
"""By name: how many arguments, and the function."""
