"""The HTTP door for servers, brokers and worker pools that speak NoETL's runtime API; `docs/doors/noetl.md` is its guide."""
