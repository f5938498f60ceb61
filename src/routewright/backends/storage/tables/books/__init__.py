"""What a file keeps of accounts besides their traces: terms and keys, the ledger, idempotency keys, events."""
