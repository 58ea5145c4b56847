"""The doors of a server process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from liveness.config.door_settings import NOETL
from liveness.config.settings import Settings

if TYPE_CHECKING:
    from liveness.http.server import Door


class DoorUnusable(Exception):
    """The message says why a server cannot open a door."""


def http_doors(settings: Settings) -> list[Door]:
    """Raises DoorUnusable."""
    if NOETL not in settings.door:
        return []
    # Imported here: a server without the door does not need it.
    from liveness.doors.noetl.paths import noetl_door
    from liveness.doors.noetl.settings import NoetlSettingsError, from_environment

    try:
        return [
            noetl_door(
                from_environment(os.environ, settings.door_noetl_namespace, settings.door_noetl_replicas)
            )
        ]
    except NoetlSettingsError as error:
        raise DoorUnusable(str(error)) from error
