"""The GPU node's agent: a process of its own, without Django."""

__version__ = "0.1.0"
