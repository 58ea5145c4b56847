"""Run activities in a Django project: `python manage.py liveness_worker --task-queue thumbnails`.

    INSTALLED_APPS = [..., "liveness.contrib.django"]

    # shop/activities.py, found like models.py
    from liveness.contrib.django import activity

    @activity("thumbnail")
    def thumbnail(task, photo_id: int) -> str:
        photo = Photo.objects.get(id=photo_id)
        ...

Handlers that are plain functions run in threads, each with database connections of its own, which are closed as after a request when they
are too old or broken. A web process schedules with `Client().blocking`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from liveness.sdk.errors import InvalidArgument

HandlerT = TypeVar("HandlerT", bound=Callable[..., Any])

registered: dict[str, Callable[..., Any]] = {}
"""The handlers of all apps, by activity type."""


def activity(activity_type: str) -> Callable[[HandlerT], HandlerT]:
    """Register the decorated function as the handler of this activity type, for `manage.py liveness_worker`."""

    def register(handler: HandlerT) -> HandlerT:
        if registered.get(activity_type, handler) is not handler:
            raise InvalidArgument(detail=f"activity type {activity_type!r} has a handler already.")
        registered[activity_type] = handler
        return handler

    return register
