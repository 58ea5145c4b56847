"""Settings of a server in this process. Public name of `liveness.config.settings`."""

from liveness.config.settings import Settings, SettingsError

__all__ = ["Settings", "SettingsError"]
