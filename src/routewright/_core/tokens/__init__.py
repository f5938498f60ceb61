"""The length of a prompt in tokens, images included."""
