"""The primary: it serves a log to replicas, delta readers and heals, one session for each replica."""
