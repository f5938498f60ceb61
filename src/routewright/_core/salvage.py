"""What is written of a finished call that the storage refuses? Ever less of it, but never nothing of what it owes.

WHOLE -refused-> BILL -refused-> again, WHOLE first, after a pause
                  └─ refused for PATIENCE_S, or for good -> BOUND -refused-> the same, until GIVE_UP_S -> lost
"""

from __future__ import annotations

from enum import Enum

PATIENCE_S = 30.0
"""So long an odd fault is taken for one that passes."""
GIVE_UP_S = 600.0
"""So long a bill is tried at all that is refused. One that waits for a storage that is away waits for ever."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 5.0


class Part(Enum):
    """How much of a call is written."""

    WHOLE = "its trace, its bill, its idempotency key and its events"
    BILL = "its bill and its idempotency key"
    BOUND = "what its attempts cost, no more than was set aside for them, and nothing else of them"


def next_part(refused: Part, waited_s: float) -> Part | None:
    """What to try at once where so much was refused, ``waited_s`` after the first time. None: nothing for now."""
    match refused:
        case Part.WHOLE:
            return Part.BILL
        case Part.BILL if waited_s >= PATIENCE_S:
            return Part.BOUND
    return None


def is_lost(waited_s: float) -> bool:
    """Whether nothing is tried any more."""
    return waited_s >= GIVE_UP_S


def pause_after(waited_s: float) -> float:
    """How long to wait before the next try: as long as it has been tried, within bounds."""
    return min(max(waited_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)
