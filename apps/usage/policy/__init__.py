"""What usage is counted as. Pure: no framework, no clock."""
