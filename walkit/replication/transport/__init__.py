"""gRPC beneath replication: addresses, TLS, tokens, the calls of a primary and a connection to one.

- both sides: `grpc_common` has gRPC and its options, `threads` the threads and the clock, `address` and `tls`;
- a primary: `access` by tokens, `calls` bounds those that wait and those that are served;
- a replica: `connection` is one call, and the thread that receives its messages.
"""
