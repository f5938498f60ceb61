"""Test support, public and documented: doubles, and one contract suite a protocol."""
