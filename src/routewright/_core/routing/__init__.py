"""The decision: which models to call, in which order, and why. Pure."""
