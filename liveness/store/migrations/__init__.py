"""Frozen migrations of the tables. Each has one SQL file per database."""
