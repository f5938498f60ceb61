"""Roll-ups of traces, and the reports made from them."""
