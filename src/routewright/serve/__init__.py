"""The server of ``routewright serve``: configuration, a small supervisor process, and worker processes.

The supervisor never loads the library. A short-lived process reads the configuration and prepares the store; the
workers serve."""
