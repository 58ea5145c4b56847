"""Runs commands as watched, restarted workers. `launcher.py` is the program that starts their processes; `child.py` is one
process as its supervisor sees it."""
