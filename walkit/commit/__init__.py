"""When appends become durable: the pure ordering core, the thread driver, tickets and delivery."""
