"""Channel layer of the production profile: Redis pub/sub that may be away or hang at any moment.

A websocket that can not subscribe is served all the same (it looks by itself, as after any lost
hint), and is subscribed as soon as Redis answers. Owns no message: at most once, hints only.
"""

import asyncio
import logging
from typing import Any

from channels_redis.pubsub import RedisPubSubChannelLayer, RedisPubSubLoopLayer, RedisSingleShardConnection
from redis.exceptions import RedisError

log = logging.getLogger("heteroflow.hints")
RETRY_EVERY_S = 1.0
AWAY = (RedisError, OSError, TimeoutError)


class PatientShard(RedisSingleShardConnection):
    """One connection that goes on asking for what it could not subscribe to."""

    def __init__(self, host: Any, channel_layer: Any) -> None:
        super().__init__(host, channel_layer)
        self._wanted: set[str] = set()
        self._retrying: asyncio.Task[None] | None = None

    async def subscribe(self, channel: str) -> None:
        self._wanted.add(channel)
        if not await self._try(channel) and (self._retrying is None or self._retrying.done()):
            self._retrying = asyncio.create_task(self._retry(), name="redis-subscribe")

    async def unsubscribe(self, channel: str) -> None:
        self._wanted.discard(channel)
        try:
            await super().unsubscribe(channel)
        except AWAY as error:
            self._subscribed_to.discard(channel)
            log.warning("redis did not answer: %s", type(error).__name__)

    async def flush(self) -> None:
        self._wanted.clear()
        if self._retrying is not None:
            self._retrying.cancel()
        await super().flush()

    async def _try(self, channel: str) -> bool:
        try:
            await super().subscribe(channel)
        except AWAY as error:
            log.warning("redis did not answer, live hints come later: %s", type(error).__name__)
            return False
        return True

    async def _retry(self) -> None:
        while missing := sorted(self._wanted - self._subscribed_to):
            await asyncio.sleep(RETRY_EVERY_S)
            for channel in missing:
                if channel in self._wanted and not await self._try(channel):
                    break


class PatientRedisLayer(RedisPubSubChannelLayer):
    """Channels' pub/sub layer on patient connections."""

    def _get_layer(self) -> RedisPubSubLoopLayer:
        loop = asyncio.get_running_loop()
        known = loop in self._layers
        layer = super()._get_layer()
        if not known:
            layer._shards = [PatientShard(shard.host, layer) for shard in layer._shards]
        return layer


NOISY = ("channels_redis", "celery.beat", "celery.worker.consumer", "celery.worker.request")


class OneLineFaults(logging.Filter):
    """One line for each fault that layer, beat and workers log while Redis is away, without its frames."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name.startswith(NOISY) and record.exc_info:
            fault = record.exc_info[1]
            first_line = record.getMessage().partition("\n")[0]
            record.msg, record.args = f"{first_line} ({type(fault).__name__})", ()
            record.exc_info = record.exc_text = None
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        return True
