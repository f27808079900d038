"""Reads the gateway's settings once: `HETEROFLOW_GATEWAY_<NAME>` for each field of GatewayConfig.

The folder of usage files is `HETEROFLOW_USAGE_DIR`, since the flusher reads it too; the proxies that are
trusted are TRUSTED_PROXIES, as everywhere.
"""

import msgspec
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from apps.gateway.plane.core.config import GatewayConfig

_SHARED = {"usage_dir": "HETEROFLOW_USAGE_DIR", "trusted_proxies": "TRUSTED_PROXIES"}


def load_config() -> GatewayConfig:
    """Raises ImproperlyConfigured that names the setting and the rule it breaks."""
    values = {}
    for field in msgspec.structs.fields(GatewayConfig):
        name = _SHARED.get(field.name, f"HETEROFLOW_GATEWAY_{field.name.upper()}")
        if hasattr(settings, name):
            given = getattr(settings, name)
            values[field.name] = str(given) if field.type is str else given
    try:
        return msgspec.convert(values, GatewayConfig, strict=False)
    except msgspec.ValidationError as error:
        raise ImproperlyConfigured(f"A HETEROFLOW_GATEWAY_ setting can't be used: {error}") from None
