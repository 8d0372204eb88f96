"""What is there to read of a log: views, readers, ranges, cursors."""
