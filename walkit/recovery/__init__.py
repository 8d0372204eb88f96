"""Recovery of a log after a crash or damage: findings, decisions and actions."""
