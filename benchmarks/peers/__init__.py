"""Other libraries, each measured by a program that runs in that library's own environment."""
