"""What a crash or damage left of a log: what is found, what is decided on it, and what is done."""
