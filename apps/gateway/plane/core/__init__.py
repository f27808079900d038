"""The pure half of the gateway: admit, route, rewrite, scan, account. No Django, no I/O, no clock."""
