"""Contract suites of the protocols: ``storage``, ``cache`` and ``coordination``.

They import nothing else of the tests, so that the author of a storage can copy this folder."""
