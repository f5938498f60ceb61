"""Rules that decide whether a cached answer is served."""
