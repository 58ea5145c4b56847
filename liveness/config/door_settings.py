"""The doors of a server: where clients of other systems find what they know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from liveness.config.formats import is_name
from liveness.config.setting_types import (
    SettingsError,
    SettingType,
    choice_setting,
    list_setting,
    string_setting,
)

if TYPE_CHECKING:
    from liveness.config.settings import Settings

NOETL = "noetl"
NOETL_REPLICAS = ("show", "refuse", "number")

DOOR_SETTING_TYPES: Mapping[str, SettingType] = {
    "door": list_setting(lambda text: text == NOETL, NOETL, may_be_empty=True),
    "door_noetl_namespace": string_setting(is_name, "the name of a namespace"),
    "door_noetl_replicas": choice_setting(*NOETL_REPLICAS),
}


def check(settings: Settings, defaults: Mapping[str, object]) -> None:
    """Raise `SettingsError` if a door is described, but not asked for, or cannot be opened."""
    for name in ("door_noetl_namespace", "door_noetl_replicas"):
        if NOETL not in settings.door and getattr(settings, name) != defaults[name]:
            raise SettingsError(f"{name} is set, but the door is closed; set door to {NOETL}.")
    if NOETL in settings.door and settings.http == "off":
        raise SettingsError("door has noetl, which needs HTTP; set http to HOST:PORT.")
