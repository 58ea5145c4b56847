"""TLS: certificates, keys and authorities, read from files and read again when they change."""
