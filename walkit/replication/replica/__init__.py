"""The replica: it follows a primary, and is rewound or promoted when the primary is gone.

- `follower` is the public class, `loop` the thread around the subscriber, `status` its status;
- `opening` opens log, `store` and subscriber; `identity_file` keeps the replica's identity;
- `rewind` cuts its log back to the `common_point` of two histories; `promote` makes a log of it that is written.
"""
