"""The protocol of replication: messages, frames, lineage, their checks and their bytes; no I/O.

- values: `messages`, `identity` of a replica, `frame_run` of a log, `failures`;
- decisions on them: `lineage` compares two histories, `checks` has a subscriber's checks of a publisher;
- bytes: `codecs` compresses frames, `wire` encodes messages by `walkit_pb2`, which is made of walkit.proto.
"""
