"""Who calls, and what a caller may do. Every call passes `authorize` before its handler runs."""
