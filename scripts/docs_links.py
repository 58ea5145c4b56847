"""A hook of MkDocs: links to files of the repository that are no pages of the site become the names of those files."""

import posixpath
import re
from pathlib import Path
from typing import Any

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s:#]+)(#[^)\s]*)?\)")
ROOT = Path(__file__).resolve().parent.parent


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    folder = posixpath.dirname(page.file.src_uri)

    def without_link(found: re.Match[str]) -> str:
        text, path, _ = found.groups()
        target = posixpath.normpath(posixpath.join("docs", folder, path))
        if target.startswith("docs/") or not (ROOT / target).exists():
            return found[0]
        return text if target in text or f"`{target}`" in text else f"{text} (`{target}`)"

    return LINK.sub(without_link, markdown)
