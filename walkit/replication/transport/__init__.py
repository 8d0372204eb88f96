"""gRPC beneath replication: addresses, TLS, tokens, the calls of a primary and a connection to one."""
