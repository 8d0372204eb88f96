"""What the two sides of replication say: messages, frames, lineage, their checks and their bytes; no I/O."""
