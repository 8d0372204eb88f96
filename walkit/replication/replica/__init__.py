"""The replica: it follows a primary, and is rewound or promoted when the primary is gone.

- `follower` is what people call, `loop` the thread around the subscriber, `status` what it shows;
- `opening` opens log, `store` and subscriber; `identity_file` is who the replica is;
- `rewind` cuts its log back to the `common_point` of two histories; `promote` makes a log of it that is written.
"""
