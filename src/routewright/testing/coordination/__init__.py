"""What every coordination must keep, as tests: inherit ``CoordinationContract``, say how yours is made, and run pytest.

``NaiveLimiter`` says what rate limits are, in as few words as possible; ``Walk`` holds a coordination to it.
"""

from .contract import CoordinationContract
from .walk import NaiveLimiter, Walk

__all__ = ["CoordinationContract", "NaiveLimiter", "Walk"]
