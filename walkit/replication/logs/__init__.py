"""The logs of replication: what a publisher reads its frames from, and the imported log of a replica.

- to send from: `source`, with `end_watch` for a log that another process writes;
- to import into: `imported_log` is what people call, `importer` what works, `imported_segments` what writes; `upkeep`
  trims; `object_importer` does all of it on object storage;
- to get a log anew: `plan_check` checks what `walkit.copier` is to gather; an opening puts it in the place of the old;
- to wait for a record: `awaited` compares it with the history that is here;
- beside a log: `role` says whether it is a replica's, `private_file` keeps what only its owner may read.
"""
