"""The dashboard: pages without a build step, served as they lie in `static`."""
