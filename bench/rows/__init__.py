"""The measurements: one family of rows in each file."""
