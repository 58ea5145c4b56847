"""The dashboard: static files, served as they are, without a build step."""
