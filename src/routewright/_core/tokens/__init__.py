"""How long a prompt is, its images included."""
