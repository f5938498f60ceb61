"""What the workers of a service share while it runs."""
