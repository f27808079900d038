"""What the gateway is compared with: how each is started in front of the engines, and where it comes from.

nginx is Debian's. The others are packages of their ordinary names, each in a virtual environment of its own
under .cache/bench, installed at the first run; one that can't be had is left out and said.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache" / "bench"


@dataclass(frozen=True)
class Place:
    """Where one gateway stands in a run."""

    folder: Path
    port: int
    other_port: int
    engine_ports: tuple[int, ...]
    key: str

    @property
    def engines(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.engine_ports]


@dataclass(frozen=True)
class Start:
    """A command, the files that it reads (written before) and what it needs of the environment."""

    command: list[str]
    files: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)


def program(package: str, name: str, extra: str = "") -> str | None:
    """A program of a package in its own environment, installed where it is missing; None if that failed."""
    home = CACHE / package
    found = home / "bin" / name
    if not found.exists():
        print(f"Installing {package} (once) ...", file=sys.stderr, flush=True)
        CACHE.mkdir(parents=True, exist_ok=True)
        with (CACHE / f"{package}.log").open("w") as log:
            for command in (
                [sys.executable, "-m", "venv", str(home)],
                [str(home / "bin" / "pip"), "install", "--disable-pip-version-check", package + extra],
            ):
                if subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode:
                    print(f"{package} can't be installed; see {log.name}", file=sys.stderr)
                    return None
    return str(found) if found.exists() else None


def ours(place: Place) -> Start | None:
    ports = ",".join(map(str, place.engine_ports))
    command = [sys.executable, "-m", "bench.ours", str(place.port), str(place.folder / "usage"), ports]
    return Start(command, env={"PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": "heteroflow.settings.test"})


NGINX = """{user}worker_processes 1; daemon off; pid {d}/pid; error_log {d}/error.log;
worker_rlimit_nofile 65536;
events {{ worker_connections 8192; }}
http {{
  access_log off; client_max_body_size 64m; client_body_buffer_size 64k; keepalive_requests 100000000;
  client_body_temp_path {d}/b; proxy_temp_path {d}/p; fastcgi_temp_path {d}/f; uwsgi_temp_path {d}/u;
  scgi_temp_path {d}/s;
  upstream engines {{ least_conn; {servers} keepalive 1024; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""


def nginx(place: Place) -> Start | None:
    found = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if found is None:
        print("nginx is not there; install Debian's: apt-get install nginx-light", file=sys.stderr)
        return None
    text = NGINX.format(
        user="user root; " if os.geteuid() == 0 else "",
        d=place.folder,
        servers="".join(f"server 127.0.0.1:{port};" for port in place.engine_ports),
        port=place.port,
    )
    conf = place.folder / "nginx.conf"
    return Start([found, "-c", str(conf), "-p", str(place.folder)], {conf.name: text})


def _router(found: list[str], place: Place, policy: str) -> Start:
    options = {
        "--host": "127.0.0.1",
        "--port": str(place.port),
        "--policy": policy,
        "--log-level": "error",
        "--max-concurrent-requests": "8192",
        "--prometheus-port": str(place.other_port),
    }
    words = [word for pair in options.items() for word in pair]
    return Start(
        [*found, "--worker-urls", *place.engines, *words, "--disable-retries"],
        env={"TOKIO_WORKER_THREADS": "1"},
    )


def vllm_router(place: Place) -> Start | None:
    found = program("vllm-router", "vllm-router")
    return _router([found], place, "round_robin") if found else None


def sglang_router(place: Place) -> Start | None:
    python = program("sglang-router", "python")
    if python is None:
        return None
    return _router([python, "-m", "sglang_router.launch_router"], place, "power_of_two")


def litellm(place: Place) -> Start | None:
    found = program("litellm", "litellm", "[proxy]")
    if found is None:
        return None
    models = "".join(
        "  - model_name: chat\n    litellm_params: {model: openai/mock-upstream, "
        f"api_base: '{engine}/v1', api_key: none}}\n"
        for engine in place.engines
    )
    text = (
        f"model_list:\n{models}general_settings:\n  master_key: {place.key}\n"
        "litellm_settings:\n  telemetry: false\n  num_retries: 0\n  request_timeout: 300\n"
    )
    command = [found, "--config", str(place.folder / "litellm.yaml"), "--host", "127.0.0.1"]
    quiet = {
        "LITELLM_LOG": "ERROR",
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "NO_DOCS": "True",
    }
    return Start([*command, "--port", str(place.port), "--num_workers", "1"], {"litellm.yaml": text}, quiet)


PEERS: dict[str, Callable[[Place], Start | None]] = {
    "nginx": nginx,
    "ours": ours,
    "vllm-router": vllm_router,
    "sglang-router": sglang_router,
    "litellm": litellm,
}
