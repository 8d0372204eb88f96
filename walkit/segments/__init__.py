"""The files of a log: its manifest, the segments that are written, their indexes, and the walk over their frames."""
