"""Tables of accounts: terms and keys, the ledger, idempotency keys, events and webhooks."""
