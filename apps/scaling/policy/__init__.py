"""When a service is idle, and when a drain is over: pure rules, tested without a database."""
