"""What ``routewright serve`` is made of: a configuration, a supervisor that stays small, and workers that answer.

The process that is started only supervises. What loads the library runs in others: one that reads the configuration,
prepares the store and ends, and the workers."""
