"""The logs of replication: a publisher's sources of frames, and the imported log of a replica.

- to send from: `source`, with `tail_watch` for a log that another process writes;
- to import into: `imported_log` is the public class, `importer` does the work, `imported_segments` writes;
  `maintenance` trims; `object_importer` does all of it on object storage;
- to fetch a whole log: `plan_check` checks the plan for `walkit.copier`; an opening replaces the old log;
- to wait for a record: `awaited` compares it with the history that is here;
- beside a log: `folder_role` tells a replica's folder from others, `secret_file` keeps files for their owner alone.
"""
