"""Where calls are made: for real, or in the sandbox."""

from __future__ import annotations

from typing import Literal

Environment = Literal["production", "sandbox"]
