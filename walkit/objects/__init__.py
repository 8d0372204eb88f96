"""A log on object storage: one object per bulk of frames, fenced by conditional writes."""
