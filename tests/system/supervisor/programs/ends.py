"""A process that ends at once with the exit code that it is given."""

import sys

print("the last words", flush=True)
sys.exit(int(sys.argv[1]))
