"""Accounts: admission, settlement, ledger rows, and idempotency keys."""
