"""`python -m liveness` runs the command `liveness`."""

from liveness.cli import main

main(prog_name="python -m liveness")
