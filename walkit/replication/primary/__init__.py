"""The primary: it serves a log to replicas, delta readers and heals, one session for each replica.

- `server` is what people call, `session` one replica's call around a publisher, `status` what both show,
  `status_call` what a primary says of it to others;
- frames: `frame_reader` reads and checks runs, `shared_runs` keeps them for several sessions;
- replicas: `claims` keeps how far they are, and the records that they need; `replica_acks` counts those that an
  append waits for;
- `bootstrap_plan` is what a replica fetches to get its log anew, `range_service` what a heal asks for.
"""
