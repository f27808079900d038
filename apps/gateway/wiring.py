"""Builds the gateway from the Django settings and the database. Called by the composition root."""

import os
from pathlib import Path

from apps.gateway.incarnation import new_name
from apps.gateway.plane.io.app import GatewayApp
from apps.gateway.plane.io.config import load_config
from apps.gateway.plane.io.journal import Journal
from apps.gateway.sources import DatabaseSource
from apps.usage.flusher import Flusher


def build_gateway() -> GatewayApp:
    """A gateway that isn't started yet; call `startup()` on the loop that serves it."""
    config = load_config()
    folder = Path(config.usage_dir)
    source = DatabaseSource(
        new_name(), lookups_at_once=config.key_lookups_at_once, look_round_s=config.load_repeat_s
    )
    return GatewayApp(
        config,
        source=source,
        find_key=source.find_key,
        journal=Journal(folder, max_file_bytes=config.usage_file_bytes, backlog=config.usage_backlog),
        touch_keys=source.touch_keys,
        listener=source,
        heat=source.heat,
        flusher=Flusher(folder, own_pid=os.getpid(), interval_s=config.usage_flush_s),
    )
