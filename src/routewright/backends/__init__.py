"""What comes with the library for each protocol."""
