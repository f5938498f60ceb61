"""One file a wire protocol, and the two that need no wire."""
