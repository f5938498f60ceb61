"""Signatures of webhooks."""
