"""Replay the deaths and silences of a namespace with other leases, disconnect graces and storm settings."""
