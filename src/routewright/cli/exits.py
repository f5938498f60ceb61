"""Which exit code an error becomes: one for each thing that a script may want to do next."""

from __future__ import annotations

from routewright.errors import RouterError

OK = 0
INTERNAL = 1
DISAGREES = 1
USAGE = 2
NOBODY_FITS = 3
INTERRUPTED = 130
BROKEN_PIPE = 141

EXIT_CODES = {
    OK: "done",
    INTERNAL: "a fault of routewright's own, a store damaged or out of reach (500), or a bill that does not agree",
    USAGE: "the command line, a file or the request is not valid (400, 404, 409, 413)",
    NOBODY_FITS: "no model fits the constraints, or the budget (422)",
    4: "a policy, a guardrail or the provider refuses the content (403)",
    5: "every model that was tried failed (502)",
    6: "--timeout-ms ran out (504)",
    7: "the account's key is not accepted, or its money is used up (401, 402)",
    8: "too many requests: wait, then try again (429)",
    INTERRUPTED: "interrupted with Ctrl-C, or answered with no",
    BROKEN_PIPE: "nobody reads the output any more, as in: routewright models | head",
}
"""Every code that the command ends with, and what it means."""

_BY_STATUS = {422: NOBODY_FITS, 403: 4, 502: 5, 504: 6, 401: 7, 402: 7, 429: 8}


def exit_code(error: RouterError) -> int:
    """The code for an error, by its HTTP status."""
    return _BY_STATUS.get(error.status, USAGE if error.status < 500 else INTERNAL)


def exit_table() -> str:
    """The codes as the end of ``--help`` shows them."""
    return "\n".join(f"  {code:>3}  {meaning}" for code, meaning in EXIT_CODES.items())
