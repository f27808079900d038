"""Where work goes: snapshot in, plan out (SCHED-14). Pure: no framework, no clock, no I/O."""
