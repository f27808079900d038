"""The soak's gateway: `python -m bench.gateway_soak.gateway PORT METRICS_PORT FOLDER LIMIT_S ENGINE_PORTS`.

The one that is measured (bench/ours.py), but it waits LIMIT_S for an engine's next byte, and its metrics are
served at METRICS_PORT.
"""

import sys

import uvloop
from prometheus_client import start_http_server

from apps.gateway.plane.core.config import GatewayConfig
from bench.ours import serve

if __name__ == "__main__":
    port, metrics_port, folder, limit_s, engines = sys.argv[1:]
    start_http_server(int(metrics_port), addr="127.0.0.1")
    limit = float(limit_s)
    config = GatewayConfig(
        usage_dir=folder,
        first_byte_timeout_s=limit,
        gap_timeout_s=limit,
        probe_period_s=2.0,
        probe_timeout_s=1.0,
    )
    uvloop.run(serve(int(port), config, [int(word) for word in engines.split(",")]))
