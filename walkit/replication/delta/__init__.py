"""Delta poll: readers that share a log's storage ask its primary for what is new, and apply it."""
