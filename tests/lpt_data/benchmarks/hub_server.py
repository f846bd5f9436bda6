"""A hub on this machine: the few addresses of the Hugging Face hub that `datasets` asks for, over real HTTP."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(ThreadingHTTPServer):
    """Serves data sets: name -> path in the repository -> bytes. `asked` lists the requests."""

    daemon_threads = True

    def __init__(self, repositories: Mapping[str, Mapping[str, bytes]]) -> None:
        self.repositories = repositories
        self.asked: list[str] = []
        super().__init__(("127.0.0.1", 0), _Answer)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.asked.append(f"{self.command} {path}")
        for name, files in self.server.repositories.items():
            if path.startswith(api := f"/api/datasets/{name}/"):
                return self._api(path[len(api) :].split("/"), name, files)
            if path.startswith(resolve := f"/datasets/{name}/resolve/"):
                return self._file(files.get(path[len(resolve) :].partition("/")[2]))
        self._send(200 if path == "/" else 404)

    do_HEAD = do_GET

    def _api(self, rest: list[str], name: str, files: Mapping[str, bytes]) -> None:
        if rest[0] == "revision":
            told = {"_id": "1", "id": name, "sha": COMMIT, "private": False, "gated": False, "disabled": False}
            told |= {"tags": [], "downloads": 0, "likes": 0, "siblings": [{"rfilename": path} for path in files]}
            return self._json(told)
        if rest[0] == "tree":
            return self._json(_tree(files, "/".join(rest[2:])))
        return self._send(404)

    def _file(self, data: bytes | None) -> None:
        if data is None:
            return self._send(404, **{"X-Error-Code": "EntryNotFound"})
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{_oid(data)}"', "Accept-Ranges": "bytes"}
        if given := self.headers.get("Range"):
            start, _, end = given.removeprefix("bytes=").partition("-")
            part = data[int(start) : int(end) + 1 if end else None]
            headers["Content-Range"] = f"bytes {start}-{int(start) + len(part) - 1}/{len(data)}"
            return self._send(206, part, **headers)
        return self._send(200, data, **headers)

    def _json(self, body: object) -> None:
        self._send(200, json.dumps(body).encode(), **{"Content-Type": "application/json"})

    def _send(self, code: int, data: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def _oid(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


def _folders(files: Mapping[str, bytes]) -> set[str]:
    return {"/".join(path.split("/")[:n]) for path in files for n in range(1, path.count("/") + 1)}


def _tree(files: Mapping[str, bytes], folder: str) -> list[dict]:
    """What lies in a folder, or beneath it: files with their sizes, and folders."""
    found: list[dict] = [
        {"type": "directory", "path": path, "oid": "0" * 40, "size": 0}
        for path in sorted(_folders(files))
        if path.rpartition("/")[0] == folder
    ]
    return found + [
        {"type": "file", "path": path, "oid": _oid(data), "size": len(data)}
        for path, data in sorted(files.items())
        if path.rpartition("/")[0] == folder
    ]


@contextmanager
def hub(repositories: Mapping[str, Mapping[str, bytes]]) -> Iterator[Hub]:
    server = Hub(repositories)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
