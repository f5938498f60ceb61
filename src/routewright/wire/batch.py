"""What all kinds of write have in common."""

from __future__ import annotations

from typing import Literal

SYSTEM_ACCOUNT = "_system"
"""Holds what belongs to no account: snapshots, and how long traces are kept."""
DEFAULT_ACCOUNT = "default"
"""Of calls that name no other: nobody's, without a plan or a limit."""

Expect = Literal["absent", "present"]
Durability = Literal["buffered", "committed"]
"""What a batch outlives once ``apply`` returned: ``buffered`` the process, ``committed`` a power cut, too. A batch has
the stronger one of its writes."""
