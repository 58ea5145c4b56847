"""A Celery app whose tasks wait until the test lets them end. Everything that the test must see is a list or key in the broker."""

from __future__ import annotations

import os

import redis
from celery import Celery

from liveness.contrib.celery import install

BROKER = os.environ["BROKER"]

app = Celery("shop", broker=BROKER, backend=BROKER)
app.conf.update(
    task_acks_late=True,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
    # No worker that this test kills leaves a message that comes back by itself.
    broker_transport_options={"visibility_timeout": int(os.environ.get("VISIBILITY_SECONDS", "3600"))},
)
if os.environ.get("WITH_LIVENESS", "on") == "on":
    install(app, disconnect_grace=1)

store = redis.Redis.from_url(BROKER)


@app.task(name="work")
def work(name: str) -> str:
    store.rpush("begun", f"{name} by {os.environ['WORKER_NAME']}")
    store.blpop([f"finish {name}"], timeout=60)
    return name
