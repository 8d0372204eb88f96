"""Examining a log for people: what stands where, judged range by range. `walkit.recovery.verify` is the way in."""
