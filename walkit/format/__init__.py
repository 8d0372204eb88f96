"""Bytes: the format of the log, without files and clocks. FORMAT.md is the specification; this is its only codec."""
