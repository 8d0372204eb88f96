"""The write-ahead log as one object: opening, appending, observers, holds, trim, retention, closing."""
