"""Metrics of a server: counted in one place, exported to Prometheus and to `GetFleet`."""
