"""Where facts are kept. `Store` is the seam; SQLite and PostgreSQL stand behind it with one body of SQL."""
