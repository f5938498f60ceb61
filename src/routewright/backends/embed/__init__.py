"""Embedders that come with the library."""
