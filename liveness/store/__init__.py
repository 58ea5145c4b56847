"""Persistence. `Store` is the interface; SQLite and PostgreSQL implement it with shared SQL."""
