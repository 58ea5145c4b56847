"""Renew the modules that the dashboard ships: `python scripts/vendor_dashboard.py`. It needs npm and builds nothing.

It changes two things: browsers find modules by address and not by name, and uPlot publishes its module only in a form
three times as large. See `PREACT_IMPORT` and `UPLOT_EXPORT`.
"""

from __future__ import annotations

import re
import subprocess
import tarfile
import tempfile
from pathlib import Path

VENDOR = Path(__file__).resolve().parent.parent / "liveness" / "dashboard" / "static" / "vendor"

VERSIONS = {"preact": "11.2.0", "htm": "3.1.1", "uplot": "1.6.32"}
# package, its file, our name
FILES = (
    ("preact", "dist/preact.mjs", "preact.js"),
    ("preact", "hooks/dist/hooks.mjs", "hooks.js"),
    ("preact", "LICENSE", "licenses/preact.txt"),
    ("htm", "dist/htm.module.js", "htm.js"),
    ("htm", "LICENSE", "licenses/htm.txt"),
    ("uplot", "dist/uPlot.iife.min.js", "uplot.js"),
    ("uplot", "dist/uPlot.min.css", "uplot.css"),
    ("uplot", "LICENSE", "licenses/uplot.txt"),
)
PREACT_IMPORT = ('from"preact"', 'from"./preact.js"')
UPLOT_EXPORT = "export default uPlot;\n"
SOURCE_MAP = re.compile(r"^//# sourceMappingURL=.*\n?", re.MULTILINE)


def vendored(name: str, text: str) -> str:
    text = SOURCE_MAP.sub("", text)
    if name == "hooks.js":
        assert PREACT_IMPORT[0] in text, "hooks no longer import preact by name"
        text = text.replace(*PREACT_IMPORT)
    if name == "uplot.js":
        assert "var uPlot=" in text, "uPlot is no longer one variable"
        text = text.rstrip() + "\n" + UPLOT_EXPORT
    return text.rstrip() + "\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for package, version in VERSIONS.items():
            subprocess.run(["npm", "pack", "--silent", f"{package}@{version}"], cwd=folder, check=True)
        for package, path, name in FILES:
            archive = Path(folder, f"{package}-{VERSIONS[package]}.tgz")
            with tarfile.open(archive) as files:
                member = files.extractfile(f"package/{path}")
                assert member is not None, path
                text = member.read().decode()
            target = VENDOR / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(vendored(name, text))
            print(f"{target.relative_to(VENDOR)}: {package} {VERSIONS[package]}")


if __name__ == "__main__":
    main()
