"""Write requirements.lock: what the container installs, with the hash of every file that pip may use for it.

    .venv/bin/python scripts/renew_lock.py

pip takes the files from wherever it is configured to; no index is named here or in the lock. The versions are those of
constraints.txt, for the Python and the processors that deploy/Containerfile is built for.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tempfile
import tomllib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.lock"
PYTHON_VERSION = "3.11"
EXTRAS = ("server", "nats", "traces", "celery", "django", "starlette")
"""All but those for development, so that the image relays, traces, and is a base for workers of every kind."""
PROCESSORS = ("x86_64", "aarch64")
GLIBC = ("2_17", "2_28", "2_34")
HEADER = """\
# Written by scripts/renew_lock.py: what the container installs, with the hashes of the files. Names no index on purpose.
"""


def requirements() -> list[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = project["name"]
    wanted, extras = [*project["dependencies"], "setuptools"], list(EXTRAS)
    while extras:
        for requirement in project["optional-dependencies"][extras.pop()]:
            if found := re.fullmatch(rf"{own}\[(.+)\]", requirement):
                extras += found[1].split(",")
            else:
                wanted.append(requirement)
    return wanted


def download(folder: Path, processor: str) -> None:
    platforms = [f"manylinux{tag}_{processor}" for tag in ("2014", *(f"_{glibc}" for glibc in GLIBC))]
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"),
        *("--only-binary", ":all:", "--python-version", PYTHON_VERSION, "--dest", str(folder)),
        *(part for platform in platforms for part in ("--platform", platform)),
        *("--constraint", str(ROOT / "constraints.txt"), *requirements()),
    ]
    subprocess.run(command, check=True)


def main() -> None:
    hashes: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for processor in PROCESSORS:
        with tempfile.TemporaryDirectory() as folder:
            download(Path(folder), processor)
            for file in Path(folder).iterdir():
                name, version, *_ = file.name.split("-")
                release = name.lower().replace("_", "-").replace(".", "-"), version
                hashes[release].add(hashlib.sha256(file.read_bytes()).hexdigest())
    lines = [HEADER]
    for (name, version), digests in sorted(hashes.items()):
        parts = (f"{name}=={version}", *(f"    --hash=sha256:{digest}" for digest in sorted(digests)))
        lines.append(" \\\n".join(parts) + "\n")
    LOCK.write_text("".join(lines))


if __name__ == "__main__":
    main()
