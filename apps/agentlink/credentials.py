"""Who speaks: the node credential and the contract version of a request or websocket handshake.

Owns how they are written in headers; the comparison itself is fleet's. Never logs a secret.
"""

from agent.contract.messages import CONTRACT_VERSION
from apps.core.errors import Refusal
from apps.fleet.models import Node
from apps.fleet.services import authenticate

# The server serves its own contract and the one before it (OPS-11); version 1 has none before it.
SUPPORTED = tuple(version for version in (CONTRACT_VERSION - 1, CONTRACT_VERSION) if version >= 1)
LONGEST_HEADER = 1000


def check_contract(offered: str | None) -> None:
    """Raises Refusal 426 for a version that this server does not speak, or none at all."""
    if offered is None or offered not in {str(version) for version in SUPPORTED}:
        shown = "none" if offered is None else ascii(offered[:20])
        raise Refusal("contract_unsupported", 426, supported=", ".join(map(str, SUPPORTED)), offered=shown)


def check_credential(header: str | None) -> Node:
    """The node of an `Authorization: Bearer <node id>:<secret>` header. Raises Refusal 401."""
    scheme, _, credential = (header or "").partition(" ")
    node_id, colon, secret = credential.strip().partition(":")
    if scheme.lower() == "bearer" and colon and secret and len(credential) <= LONGEST_HEADER:
        node = authenticate(node_id, secret)
        if node is not None:
            return node
    raise Refusal("node_credential_wrong", 401)
