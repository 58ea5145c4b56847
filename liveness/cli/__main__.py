"""`python -m liveness.cli` is `liveness`."""

from liveness.cli import main

main(prog_name="liveness")
