"""Values kept in another log: the payload log of a log, its writer, and the space that it frees."""
