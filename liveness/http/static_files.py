"""The files of the dashboard. They are read once at start, so that all files served belong to one version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from mimetypes import guess_type
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import Response

INDEX = "index.html"
# Listed here because the operating system's table may have other types for them, or none.
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".mjs": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}


@dataclass(frozen=True, slots=True)
class StaticFile:
    content: bytes
    media_type: str
    etag: str

    def response(self, headers: Headers) -> Response:
        # A browser revalidates its copy each time, so that it sees an upgrade at once.
        validity = {"ETag": self.etag, "Cache-Control": "no-cache"}
        known = {tag.strip().removeprefix("W/") for tag in headers.get("if-none-match", "").split(",")}
        if self.etag in known or "*" in known:
            return Response(status_code=304, headers=validity)
        return Response(self.content, media_type=self.media_type, headers=validity)


def read_files(folder: Path) -> Mapping[str, StaticFile]:
    """The files by URL path. Requests are looked up here and never reach the file system."""
    files = {
        f"/static/{path.relative_to(folder).as_posix()}": _read(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    index = files.get(f"/static/{INDEX}")
    return files if index is None else {**files, "/": index, f"/{INDEX}": index}


def _read(path: Path) -> StaticFile:
    content = path.read_bytes()
    media_type = _TYPES.get(path.suffix) or guess_type(path.name)[0] or "application/octet-stream"
    return StaticFile(content, media_type, f'"{sha256(content).hexdigest()[:32]}"')
