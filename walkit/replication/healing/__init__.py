"""Healing: damaged ranges of a log get the frames of a peer that has the same ones.

`ranges` finds what is damaged, `link` fetches frames from a peer, `write` makes the file that takes the place of a
segment, and `heal`, which people call, goes through all segments.
"""
