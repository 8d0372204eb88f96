"""Examining a log for people: what stands where, judged range by range. `walkit.log.tools` is the way in."""
