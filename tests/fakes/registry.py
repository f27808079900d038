"""A registry of images that asks for a name and a password, as far as `docker pull` needs one.

Owns one image of one layer a repository, made anew for each `offer`. Docker speaks plain http to a
registry on 127.0.0.1.
"""

import base64
import gzip
import hashlib
import io
import json
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"
LAYER = "application/vnd.docker.image.rootfs.diff.tar.gzip"


class Registry(ThreadingHTTPServer):
    """`password` opens it to everybody who gives it; None: to everybody."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.password: str | None = "hunter2"
        self.refusal: tuple[int, str] | None = None  # status and words for every question instead
        self.manifests: dict[str, bytes] = {}
        self.blobs: dict[str, bytes] = {}
        self.asked: list[str] = []

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def offer(self, repository: str, content: str) -> str:
        """Put an image with this content there, in place of another; its reference."""
        layer, changes = io.BytesIO(), content.encode()
        with tarfile.open(fileobj=layer, mode="w") as tar:
            entry = tarfile.TarInfo("content")
            entry.size = len(changes)
            tar.addfile(entry, io.BytesIO(changes))
        config = json.dumps(
            {
                "architecture": "amd64",
                "os": "linux",
                "config": {"Cmd": ["/content"]},
                "rootfs": {"type": "layers", "diff_ids": [_digest(layer.getvalue())]},
                "history": [{"created": "2024-01-01T00:00:00Z"}],
            }
        ).encode()
        packed = gzip.compress(layer.getvalue(), mtime=0)
        self.manifests[repository] = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": self._blob(CONFIG, config),
                "layers": [self._blob(LAYER, packed)],
            }
        ).encode()
        return f"{self.host}/{repository}:1"

    def _blob(self, kind: str, content: bytes) -> dict[str, object]:
        self.blobs[_digest(content)] = content
        return {"mediaType": kind, "size": len(content), "digest": _digest(content)}


class _Answer(BaseHTTPRequestHandler):
    server: Registry
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        registry = self.server
        registry.asked.append(self.path)
        given = base64.b64decode(self.headers.get("Authorization", "").removeprefix("Basic ")).decode()
        words = self.path.strip("/").split("/")
        if registry.refusal is not None:
            status, text = registry.refusal
            body = json.dumps({"errors": [{"code": "UNKNOWN", "message": text}]}).encode()
            self._send(status, body, "application/json")
        elif registry.password is not None and given != f"me:{registry.password}":
            body = b'{"errors": [{"code": "UNAUTHORIZED", "message": "authentication required"}]}'
            self._send(401, body, "application/json", ("WWW-Authenticate", 'Basic realm="test"'))
        elif words == ["v2"]:
            self._send(200, b"{}", "application/json")
        elif words[-2] == "manifests" and (found := registry.manifests.get("/".join(words[1:-2]))):
            self._send(200, found, MANIFEST, ("Docker-Content-Digest", _digest(found)))
        elif words[-2] == "blobs" and (found := registry.blobs.get(words[-1])):
            self._send(200, found, "application/octet-stream")
        else:
            body = b'{"errors": [{"code": "MANIFEST_UNKNOWN", "message": "manifest unknown"}]}'
            self._send(404, body, "application/json")

    do_HEAD = do_GET

    def _send(self, status: int, body: bytes, kind: str, *more: tuple[str, str]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Docker-Distribution-Api-Version", "registry/2.0")
        for name, value in more:
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: `asked` tells."""


@contextmanager
def running_registry() -> Iterator[Registry]:
    """A registry for as long as the block runs."""
    with Registry() as registry:
        thread = threading.Thread(target=registry.serve_forever, daemon=True)
        thread.start()
        try:
            yield registry
        finally:
            registry.shutdown()
            thread.join(10)


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
