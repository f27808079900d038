"""Which silences are losses. Pure: no framework, no clock."""
