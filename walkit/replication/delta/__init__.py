"""Delta poll: readers that share a log's storage ask its primary for new records, and apply them.

- both sides: `messages`, their bytes in `wire`;
- the primary's: `session` (one reader) and `poll_server` (all of them) are the core, on a `buffer` of the newest
  frames; `server_feed` gives them the log's frames, `stored_frames` those of a log that is not open here, `service` is
  the gRPC call;
- the reader's: `poll_client` and `replayer` are the core; `reader_loop` is the shell, with `client_channel` to the
  primary, `loader` of ranges from the storage and `opening`, which checks whose frames an answer has;
- the reader's results: `state`, `checkpoint`, `maintenance` of claim and checkpoints, `status`;
- `reader` is the public class.
"""
