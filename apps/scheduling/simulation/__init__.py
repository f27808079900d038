"""A workload replayed against a fleet on paper, by the scheduler's own decision (SCHED-15). No database."""
