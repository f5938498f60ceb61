"""The server of ``routewright serve``: configuration, and the processes that uvicorn supervises.

The supervisor never loads the library. A short-lived process reads the configuration and prepares the store; the
workers serve."""
