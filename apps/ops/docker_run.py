"""What RUNTIME=docker needs on this machine before anything is started.

Owns the questions to Docker and the local agent's settings for it. Never fetches or builds an image.
"""

import os
from collections.abc import Mapping
from typing import Any

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound

from agent.engines.catalog import get_engine
from apps.ops.preflight import NotReady

DEFAULT_HOST = "unix:///var/run/docker.sock"
TIMEOUT_S = 10


def engine_image() -> str:
    """The image of the engine that the demo runs on."""
    engine = get_engine("llamacpp")
    assert engine is not None
    return engine.images["cpu"]


def require_docker(host: str, image: str) -> None:
    """Raises NotReady unless Docker answers at this address and has the image."""
    if not host.startswith("unix:///"):
        raise NotReady(
            f"DOCKER_HOST={host} is not offered with RUNTIME=docker: containers use this machine's files and "
            "loopback ports. Use unix:///PATH, or leave it out."
        )
    try:
        api = docker.APIClient(base_url=host, version="auto", timeout=TIMEOUT_S)
        api.inspect_image(image)
    except ImageNotFound:
        raise NotReady(
            f"RUNTIME=docker needs the image {image}, and Docker does not have it. Build a small one "
            f"from what is installed here, for trying: make engine-image. "
            f"Or fetch the real one: docker pull {image}"
        ) from None
    except (APIError, DockerException, requests.RequestException, OSError) as error:
        raise NotReady(
            f"Docker does not answer at {host} ({_short(error)}). Start it, let this user reach it, or name "
            "its address as in DOCKER_HOST=unix:///PATH; without Docker leave RUNTIME out."
        ) from None


def chosen(environ: Mapping[str, str]) -> dict[str, Any] | None:
    """The local agent's settings where RUNTIME=docker; None for local processes. Raises NotReady where
    Docker does not answer or lacks the image."""
    if environ.get("RUNTIME") != "docker":
        return None
    host = environ.get("DOCKER_HOST") or DEFAULT_HOST
    require_docker(host, engine_image())
    return agent_settings(host)


def agent_settings(host: str) -> dict[str, Any]:
    """The local agent's settings for Docker. Engines run as this user, who owns the model files, and end
    with `make run` when it is told to end; those of a killed one are adopted by the next."""
    return {
        "runtime": "docker",
        "docker_host": host,
        "container_user": f"{os.getuid()}:{os.getgid()}",
        "stop_on_leave": True,
    }


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:160]
