"""The half of the gateway that touches sockets, files and settings, around `plane.core`."""
