"""The numbers of a server: counted in one place, shown to Prometheus and to `GetFleet`."""
