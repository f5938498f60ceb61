"""The ground that waits: event loops, threads, forks, and ids."""
