"""The copier: a log made again in another place, and read back before it counts. None of it needs gRPC.

1. `plan` chooses the segments of the source, and the last frame; `planned_files` reads them there.
2. `gathering` writes it into a folder, as parts that no log reads; `segment_check` and `snapshot_check` read a part
   back as soon as it has all its bytes.
3. `switch` gives the parts their names; in a replica's folder they replace its log.

`walkit.copy` (`log_copy`) does all of it in one process; in a bootstrap of a replica a link lies between 1 and 2.
"""
