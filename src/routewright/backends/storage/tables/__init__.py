"""The tables of a store: statements that all storages over SQL share."""
