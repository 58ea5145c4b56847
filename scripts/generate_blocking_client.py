"""Writes liveness/sdk/blocking_client.py, the client for programs without an event loop, from liveness/sdk/client.py.

    generate_blocking_client.py generate     rewrite it
    generate_blocking_client.py check        fail if it differs from what client.py generates

What lies between `# async only` and `# end of async only` is left out, and the words of coroutines are replaced by those of plain
functions.
"""

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "liveness" / "sdk" / "client.py"
TARGET = ROOT / "liveness" / "sdk" / "blocking_client.py"
ASYNC_ONLY = re.compile(r"^ *# async only$.*?^ *# end of async only$\n", re.MULTILINE | re.DOTALL)
OWN_IMPORT = "from liveness.sdk.blocking_client import BlockingClient\n"
WORDS = (
    (r"\basync (def|for|with) ", r"\1 "),
    (r"\bawait ", ""),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
    (r"\bresult_of\b", "result_of_blocking"),
    (r"\b(Client|ActivityHandle|Schedules)\b", r"Blocking\1"),
)
DOCSTRING = '"""`BlockingClient`: the methods of `Client` for programs without an event loop. Generated from client.py; never edited."""'


def blocking(source: str) -> str:
    source = ASYNC_ONLY.sub("", source.replace(OWN_IMPORT, ""))
    _, _, body = source.removeprefix('"""').partition('"""')
    for pattern, replacement in WORDS:
        body = re.sub(pattern, replacement, body)
    ruff = Path(sysconfig.get_path("scripts")) / "ruff"
    text = f"{DOCSTRING}{body}\n"
    for command in (["check", "--fix-only", "--quiet", "--select", "I,F401"], ["format", "--quiet"]):
        text = subprocess.run(
            [str(ruff), *command, "--stdin-filename", str(TARGET), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        ).stdout
    return text


def main() -> None:
    text = blocking(SOURCE.read_text())
    if sys.argv[1:] == ["generate"]:
        TARGET.write_text(text)
    elif sys.argv[1:] == ["check"]:
        if not TARGET.exists() or TARGET.read_text() != text:
            sys.exit(
                f"{TARGET.relative_to(ROOT)} is not what client.py generates; run `make blocking-client`."
            )
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
