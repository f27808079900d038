"""`make bench-scheduler`: the decision alone, a whole tick on PostgreSQL, how both grow with the fleet."""
