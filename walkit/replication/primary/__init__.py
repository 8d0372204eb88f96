"""The primary: it serves a log to replicas, delta readers and heals, one session for each replica.

- `server` is the public class, `session` one replica's call around a publisher, `status` the status of both,
  `status_call` sends a primary's status to others;
- frames: `frame_reader` reads and checks runs, `shared_runs` keeps them for several sessions;
- replicas: `claims` keeps how far they are, and the records that they need; `replica_acks` counts those that an
  append waits for;
- `bootstrap_plan` lists the files that a replica fetches for a whole log, `range_service` serves a heal.
"""
