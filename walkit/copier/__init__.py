"""The copier: a log, or one of its segments, made again in another place or in its own, whatever the way it comes.

`segment_check` reads back every file that was made, before anything is named by it.
"""
