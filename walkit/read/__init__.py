"""Reading a log: views, readers, ranges, cursors."""
