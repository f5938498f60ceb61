"""Providers by wire protocol, functions and the sandbox as providers, and what they share."""
