"""Who speaks: the node credential and the contract version of a request or websocket handshake.

Owns how they are written in headers; the comparison itself is fleet's. Never logs a secret.
"""

import logging

from agent.contract.codes import Code
from agent.contract.messages import CONTRACT_VERSION
from apps.core.errors import Refusal
from apps.fleet.models import Node
from apps.fleet.services import authenticate, owner_of_secret

log = logging.getLogger("heteroflow.security")

# The server serves its own contract and the one before it (OPS-11); version 1 has none before it.
SUPPORTED = tuple(version for version in (CONTRACT_VERSION - 1, CONTRACT_VERSION) if version >= 1)
LONGEST_HEADER = 1000


def check_contract(offered: str | None) -> int:
    """The version that is spoken. Raises Refusal 426 for one that this server does not speak, or none."""
    if offered is None or offered not in {str(version) for version in SUPPORTED}:
        shown = "none" if offered is None else ascii(offered[:20])
        raise Refusal("contract_unsupported", 426, supported=", ".join(map(str, SUPPORTED)), offered=shown)
    return int(offered)


def check_credential(header: str | None) -> Node:
    """The node of an `Authorization: Bearer <node id>:<secret>` header. Raises Refusal 401, and 403 for
    the secret of one node under the id of another or of none, which look alike."""
    scheme, _, credential = (header or "").partition(" ")
    node_id, colon, secret = credential.strip().partition(":")
    if scheme.lower() == "bearer" and colon and secret and len(credential) <= LONGEST_HEADER:
        node = authenticate(node_id, secret)
        if node is not None:
            return node
        owner = owner_of_secret(secret)
        if owner is not None:
            log.warning("the secret of node %s was used under another id", owner.public_id)
            raise Refusal(Code.NOT_THIS_NODES, 403)
    raise Refusal("node_credential_wrong", 401)
