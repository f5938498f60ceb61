"""Where cached answers lie."""
