"""How fast is it? One question a file, each beside a floor and, on request, beside a peer (see README.md)."""
