"""The write-ahead log as one object: opening, appending, observers, claims, trim, retention, closing."""
