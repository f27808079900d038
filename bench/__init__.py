"""Measures: the gateway beside others in front of the same engines, and what the server takes in."""
