"""routewright routes chat requests across many language models inside your own process."""
