"""HTTP, behind one small protocol."""
