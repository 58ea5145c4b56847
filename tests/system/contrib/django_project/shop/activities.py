"""The activities of the app."""

from django.db import connection

from liveness.contrib.django import activity


@activity("count")
def count(task, limit: int) -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM (SELECT 1 UNION ALL SELECT 2) WHERE 1 <= %s", [limit])
        return cursor.fetchone()[0]
