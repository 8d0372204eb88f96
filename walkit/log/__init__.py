"""Where bytes meet places: manifest, segments, recovery, readers, and the write-ahead log itself."""
