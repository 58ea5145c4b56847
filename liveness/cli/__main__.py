"""`python -m liveness.cli` runs the command `liveness`."""

from liveness.cli import main

main(prog_name="liveness")
