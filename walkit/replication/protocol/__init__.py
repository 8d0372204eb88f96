"""What the two sides of replication say: messages, frames, lineage, their checks and their bytes; no I/O.

- values: `messages`, `identity` of a replica, `frame_run` of a log, `failures`;
- decisions on them: `lineage` compares two histories, `checks` is what a subscriber believes of a publisher;
- bytes: `codecs` compresses frames, `wire` encodes messages by `walkit_pb2`, which is made of walkit.proto.
"""
