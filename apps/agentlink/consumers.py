"""The websocket of an agent, /ws/agent: says "look now" and nothing else.

A hint only: the agent is whole without it. The node proves itself at the handshake; no secret or
task ever goes over this connection.
"""

import logging
from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.db import DatabaseError

from agent.contract import wire
from agent.contract.messages import CONTRACT_HEADER, Look
from apps.agentlink.credentials import check_contract, check_credential
from apps.core.errors import Refusal

log = logging.getLogger("heteroflow.agentlink")

REPLACED = 4409  # another connection of the same node came later
AWAY = 1013  # try again later


class AgentConsumer(AsyncWebsocketConsumer):
    """One connection a node: the newest closes those before it."""

    group = ""

    async def connect(self) -> None:
        """Refused before acceptance, so that the handshake itself answers 403."""
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in self.scope["headers"]
        }
        try:
            check_contract(headers.get(CONTRACT_HEADER.lower()))
            node = await database_sync_to_async(check_credential)(headers.get("authorization"))
        except Refusal as refusal:
            await self.close(4000 + refusal.status)
            return
        except DatabaseError as error:
            log.warning("websocket of an agent: the database did not answer: %s", type(error).__name__)
            await self.close(AWAY)
            return
        self.group = f"node.{node.public_id}"
        await self._replace_earlier()
        await self.channel_layer.group_add(self.group, self.channel_name)
        await self.accept()

    async def _replace_earlier(self) -> None:
        """Close connections of this node that came before. A hint, too: without a channel layer the
        earlier ones end by their own pings."""
        try:
            await self.channel_layer.group_send(self.group, {"type": "replaced"})
        except Exception as error:  # each layer raises its own
            log.warning("earlier websockets of %s stay: %s", self.group, type(error).__name__)

    async def disconnect(self, code: int) -> None:
        if self.group:
            await self.channel_layer.group_discard(self.group, self.channel_name)

    async def look(self, message: dict[str, Any]) -> None:
        """A hint by `apps.core.hints.look`, which names this group."""
        await self.send(text_data=wire.encode(Look()).decode())

    async def replaced(self, message: dict[str, Any]) -> None:
        """A later connection of this node is here."""
        await self.close(REPLACED)
