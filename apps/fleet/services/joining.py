"""How a machine becomes a node, and how a node proves who it is (AGENT-01).

The agent makes its own secret and sends only the hash with the token, so a join that is repeated
after a lost answer gives the same node. Owns join tokens; never stores or logs a token or a secret.
"""

import hmac
import logging
import re
import shlex
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from agent.contract.messages import JoinRequest
from apps.core import audit, secrets, versions
from apps.core.errors import Conflict, FieldError, Forbidden, Invalid, Refusal
from apps.core.ids import looks_like_id
from apps.fleet.models import JoinToken, Liveness, Node
from apps.fleet.services.changes import note_node
from apps.tenants.models import User
from apps.tenants.scope import Viewer

log = logging.getLogger("heteroflow.fleet")

_HEX64 = re.compile(r"[0-9a-f]{64}")
_NOBODY = "0" * 64
_NAMES = "fleet.names"


def create_join_token(*, actor: Viewer, ttl_s: float | None = None, now: datetime) -> tuple[JoinToken, str]:
    """A one-time token and its plain value, which is shown once. `ttl_s` defaults to JOIN_TOKEN_TTL_S.

    Raises Forbidden for anyone but an operator, Invalid for a lifetime outside 1 s to 30 days.
    """
    if not actor.is_operator or actor.user_id is None:
        raise Forbidden
    ttl_s = settings.JOIN_TOKEN_TTL_S if ttl_s is None else ttl_s
    longest = settings.JOIN_TOKEN_TTL_MAX_S
    if not 1 <= ttl_s <= longest:
        raise Invalid([FieldError("ttl_s", "out_of_range", ttl_s, {"min": 1, "max": longest})])
    plain = secrets.new_token("jt-")
    with transaction.atomic():
        token = JoinToken.objects.create(
            sha256=secrets.sha256_hex(plain),
            created_by=User.objects.get(pk=actor.user_id),
            expires_at=now + timedelta(seconds=ttl_s),
        )
        audit.note(
            actor,
            "create_join_token",
            kind="join_token",
            public_id=token.public_id,
            name=token.public_id,
            after={"expires_at": token.expires_at},
        )
    return token, plain


def join_command(plain: str) -> str:
    """The line that an operator pastes on the machine, in this source's folder after `make install`, with
    the fingerprint of our certificate where one is set; the token goes by environment, so that it stands
    in no process list."""
    named = {"SERVER_URL": settings.PUBLIC_URL, "SERVER_SHA256": settings.SERVER_CERTIFICATE_SHA256}
    named["JOIN_TOKEN"] = plain
    words = [f"HETEROFLOW_AGENT_{name}={shlex.quote(value)}" for name, value in named.items() if value]
    return " ".join([*words, ".venv/bin/python -m agent"])


def redeem_join_token(*, request: JoinRequest, now: datetime) -> Node:
    """The node that this machine is from now on; the same one when the same join is repeated.

    Raises Invalid for an unusable field, Refusal 401 for an unknown or expired token, Conflict
    `join_token_used` when another machine or another secret has redeemed it.
    """
    _check(request)
    with transaction.atomic():
        token = (
            JoinToken.objects.select_for_update(of=("self",))
            .select_related("node")
            .filter(sha256=secrets.sha256_hex(request.token))
            .first()
        )
        if token is None:
            raise Refusal("join_token_unknown", 401)
        if token.redeemed_at is not None:
            return _repeat(token, request)
        if token.expires_at <= now:
            raise Refusal("join_token_expired", 401)
        node = Node.objects.create(
            name=_free_name(request.hostname),
            hostname=request.hostname,
            machine_id=request.machine_id,
            secret_sha256=request.secret_sha256,
            agent_version=request.agent_version[:50],
            contract_version=request.contract_version,
        )
        Liveness.objects.create(node=node)
        token.redeemed_at = now
        token.node = node
        token.save(update_fields=["redeemed_at", "node"])
        machine = audit.Someone(name=request.hostname, public_id=node.public_id)
        note_node(machine, "join_node", node, after={"join_token_id": token.public_id})
    log.info("node %s (%s) has joined", node.public_id, node.name)
    return node


def authenticate(node_id: str, secret: str) -> Node | None:
    """The node whose secret this is, or None. Takes as long for an unknown node as for a wrong secret."""
    node = Node.objects.filter(public_id=node_id).first() if looks_like_id(node_id) else None
    kept = node.secret_sha256 if node is not None else _NOBODY
    right = hmac.compare_digest(secrets.sha256_hex(secret), kept)
    return node if right else None


def owner_of_secret(secret: str) -> Node | None:
    """The node whose secret this is, whatever id it came with; None for nobody's."""
    return Node.objects.filter(secret_sha256=secrets.sha256_hex(secret)).first()


def _repeat(token: JoinToken, request: JoinRequest) -> Node:
    node = token.node
    same = (
        node is not None
        and hmac.compare_digest(node.secret_sha256, request.secret_sha256)
        and node.machine_id == request.machine_id
    )
    if node is None or not same:
        log.warning("join token %s was offered again, by another machine or secret", token.public_id)
        raise Conflict("join_token_used")
    return node


def _check(request: JoinRequest) -> None:
    errors: list[FieldError] = []
    if not _HEX64.fullmatch(request.secret_sha256):
        expected = "64 lower-case hex digits (SHA-256 of the node's secret)"
        errors.append(FieldError("secret_sha256", "wrong_type", None, {"expected": expected}))
    for field, value, longest in (
        ("machine_id", request.machine_id, 100),
        ("hostname", request.hostname, 200),
    ):
        if not value.strip():
            errors.append(FieldError(field, "blank"))
        elif len(value) > longest:
            errors.append(FieldError(field, "too_long", None, {"max": longest}))
        elif not value.isprintable():
            errors.append(FieldError(field, "bad_characters"))
    if not request.agent_version.isprintable():
        errors.append(FieldError("agent_version", "bad_characters"))
    if not 1 <= request.contract_version <= 10_000:
        sent = str(request.contract_version)[:20]
        errors.append(FieldError("contract_version", "out_of_range", sent, {"min": 1, "max": 10_000}))
    if errors:
        raise Invalid(errors)


def _free_name(hostname: str) -> str:
    """The host's name, or with a number where machines share one. Names are given one at a time: whoever asks
    at the same moment waits until our transaction has ended."""
    versions.bump(_NAMES)
    taken = set(Node.objects.filter(name__startswith=hostname[:190]).values_list("name", flat=True))
    if hostname not in taken:
        return hostname
    return next(
        name for number in range(2, len(taken) + 3) if (name := f"{hostname[:190]}-{number}") not in taken
    )
