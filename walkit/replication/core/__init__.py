"""The two state machines of replication, publisher and subscriber, and what they are made of; no I/O."""
