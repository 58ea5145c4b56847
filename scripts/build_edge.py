"""make edge: build the native edge and install it into the environment of this Python.

The edge is optional, and so are the tools that build it: without cargo, or without a way to the crates, one sentence says so. `make test` builds it
where it can (`--where-possible`) and runs the tests in Rust beside (`--test`); `make check` looks at its style (`--check`).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EDGE = ROOT / "edge"
BUILT = Path(sys.prefix) / ".edge-built"
"""Holds the hash of the sources that the installed module was built from."""


class CannotBuildError(Exception):
    """Something outside of this repository is missing."""


def main(options: argparse.Namespace) -> int:
    if not options.check and not options.test and is_built():
        return 0
    try:
        cargo = find_cargo()
        fetch_crates(cargo)
    except CannotBuildError as error:
        print(
            f"The native edge is not {'checked' if options.check else 'built'}: {error}. Without it, grpc.aio listens.",
            file=sys.stderr,
        )
        return 0 if options.where_possible else 1
    if options.check:
        return check_style(cargo)
    build(cargo)
    return run([cargo, "test", "--release", "--locked", "--quiet"]) if options.test else 0


def find_cargo() -> str:
    cargo = shutil.which("cargo") or shutil.which("cargo", path=Path.home() / ".cargo" / "bin")
    if cargo is None:
        raise CannotBuildError("there is no cargo here; Rust 1.88 or newer brings it (https://rustup.rs)")
    return cargo


def fetch_crates(cargo: str) -> None:
    # Without a network, say so soon: cargo would try for minutes.
    environment = {**os.environ, "CARGO_NET_RETRY": "1", "CARGO_HTTP_TIMEOUT": "15"}
    fetched = subprocess.run(
        [cargo, "fetch", "--locked"], cwd=EDGE, env=environment, capture_output=True, text=True, check=False
    )
    if fetched.returncode:
        lines = [line.strip() for line in fetched.stderr.splitlines() if line.strip()]
        why = next((line for line in lines if line.startswith("error")), "cargo fetch failed")
        raise CannotBuildError(f"its crates cannot be fetched ({why})")


def build(cargo: str) -> None:
    if is_built():
        return
    print("Building the native edge …", flush=True)
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), "maturin"], check=True)
    environment = {
        **os.environ,
        "VIRTUAL_ENV": sys.prefix,
        "PATH": f"{Path(cargo).parent}:{os.environ['PATH']}",
    }
    maturin = [sys.executable, "-m", "maturin", "develop", "--release", "--locked", "--quiet"]
    subprocess.run(maturin, cwd=EDGE, env=environment, check=True)
    BUILT.write_text(sources_hash())


def is_built() -> bool:
    return BUILT.exists() and BUILT.read_text() == sources_hash()


def sources_hash() -> str:
    files = sorted(
        [*EDGE.glob("src/**/*.rs"), *EDGE.glob("Cargo.*"), *EDGE.glob("*.pyi"), EDGE / "pyproject.toml"]
    )
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def check_style(cargo: str) -> int:
    return run([cargo, "fmt", "--check"]) or run(
        [
            cargo,
            "clippy",
            "--release",
            "--locked",
            "--quiet",
            "--all-targets",
            "--features",
            "python",
            "--",
            "-D",
            "warnings",
        ]
    )


def run(command: list[str]) -> int:
    return subprocess.run(command, cwd=EDGE, check=False).returncode


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--where-possible", action="store_true", help="succeed where tools are missing")
    parser.add_argument("--test", action="store_true", help="run the tests in Rust, too")
    parser.add_argument("--check", action="store_true", help="build nothing; look at the style")
    try:
        sys.exit(main(parser.parse_args()))
    except subprocess.CalledProcessError as error:
        sys.exit(
            f"The native edge could not be built: {Path(error.cmd[0]).name} {' '.join(error.cmd[1:3])} failed."
        )
    except KeyboardInterrupt:
        sys.exit(130)
