"""What is measured: one family of rows in each file."""
