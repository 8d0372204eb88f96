"""Healing: damaged sealed segments of a log get the frames of a peer that has the same ones.

`link` fetches frames from a peer, and `heal`, which people call, goes through all segments.
"""
