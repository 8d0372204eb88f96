"""Healing: damaged sealed segments of a log get the frames of a peer that has the same ones.

`link` fetches frames from a peer, and `heal`, which people call, goes through all segments. `rejoin`, which they call
too, compares a log with a primary's, and makes its folder one that can follow.
"""
