"""The two state machines of replication, publisher and subscriber, and their parts; no I/O.

- `publisher` and `subscriber`: events in by method calls, `actions` out for a shell to perform;
- `answers` makes a publisher's messages, `bootstrap` follows the parts of a log that is fetched whole;
- `states` is the table of states and edges, `lag` how far one side is behind, `backoff` the pause between attempts;
- `absence` distinguishes an absent storage from a damaged one.
"""
