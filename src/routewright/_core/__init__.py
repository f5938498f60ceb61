"""The rules, as pure functions and small machines: no clock, no chance, no I/O, no anyio."""
