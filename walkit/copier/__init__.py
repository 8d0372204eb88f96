"""The copier: a log, or a segment of it, made again in another place, and read back before it counts.

`plan` chooses the segments, and the last frame; `walkit.copy` (`log_copy`) carries it out in a folder, a bootstrap
over a link. `segment_check` and `snapshot_check` read each file that was made. None of it needs gRPC.
"""
