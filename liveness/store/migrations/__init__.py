"""Frozen steps from one shape of the tables to the next. Each step's SQL lies beside it, one file per database."""
