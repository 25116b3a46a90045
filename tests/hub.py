"""A hub on this machine: as much of the Hugging Face hub's HTTP interface as downloads of public repositories use."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ADDRESS = re.compile(
    r"/(?P<api>api/models/)?(?P<id>org/[^/?]+)"
    r"(?:/(?P<verb>revision|tree|resolve)(?:/(?P<revision>[^/?]+))?(?:/(?P<path>[^?]*))?)?(?:\?.*)?$"
)


@dataclass
class Hub:
    """What the hub serves.

    Attributes:
        folder: repositories, org/name, each a folder of files.
        sent: downloads of each file.
        address: of the hub; "" while it does not run.
    """

    folder: Path
    sent: Counter[str] = field(default_factory=Counter)
    address: str = ""

    def file(self, identifier: str, name: str, content: bytes) -> None:
        """Put a file into a repository."""
        path = self.folder / identifier / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def environment(self, cache: Path) -> dict[str, str]:
        """Environment variables of a program that uses this hub and a cache of its own."""
        online = {"HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "0", "HF_HUB_DISABLE_TELEMETRY": "1"}
        own = {"HF_ENDPOINT": self.address, "HF_HOME": str(cache), "no_proxy": "127.0.0.1", "NO_PROXY": "127.0.0.1"}
        return online | own


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Hub]:
    """A hub that serves the repositories below `folder` until the block ends."""
    hub = Hub(folder)
    handler = type("Bound", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        hub.address = f"http://127.0.0.1:{server.server_port}"
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Descriptions, listings and files."""
        found = ADDRESS.match(self.path)
        root = self.hub.folder / found["id"] if found else None
        if root is None or not root.is_dir():
            return self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
        files = sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
        if not found["api"]:
            return self._file(root, found["path"], found["id"])
        if found["verb"] == "tree":
            below = f"{found['path']}/" if found["path"] else ""
            return self._json([_entry(root, name) for name in files if name.startswith(below)])
        about = {
            "id": found["id"],
            "sha": COMMIT,
            "private": False,
            "gated": False,
            "tags": [],
            "downloads": 0,
            "likes": 0,
        }
        return self._json(about | {"siblings": [{"rfilename": name} for name in files]})

    do_HEAD = do_POST = do_GET

    def _json(self, content: object) -> None:
        self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _file(self, root: Path, name: str, identifier: str) -> None:
        path = root / name
        if not path.is_file():
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        content = path.read_bytes()
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{_sha256(content)}"'}
        if self.command == "GET":
            self.hub.sent[f"{identifier}/{name}"] += 1
        self._send(200, content, headers)

    def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _entry(root: Path, name: str) -> dict[str, object]:
    content = (root / name).read_bytes()
    large = {"oid": _sha256(content), "size": len(content), "pointerSize": 100}
    return {"type": "file", "path": name, "size": len(content), "oid": _sha256(content)[:40], "lfs": large}


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
