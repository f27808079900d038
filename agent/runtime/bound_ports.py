"""Whether a port of this host can be listened on, before something is started that has to.

Owns that question alone. Docker asks it itself for the ports that it publishes; for a process, and for a
container that has the host's network, nobody else does.
"""

from __future__ import annotations

import socket

from agent.contract.codes import Code, reason
from agent.runtime.base import PortBusy, StartRefused

ANYWHERE = ""


def require_free(host: str, port: int) -> None:
    """Raises PortBusy, or StartRefused where this account may not have it. Asked for beforehand, since some
    engines share a port silently. `host` ANYWHERE: at all addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except PermissionError as error:
            raise StartRefused(reason(Code.START_FAILED, why=f"port {port}: {error.strerror}")) from error
        except OSError as error:
            raise PortBusy(port) from error
