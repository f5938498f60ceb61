"""Response cache backends."""
