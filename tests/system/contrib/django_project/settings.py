"""A Django project with one app."""

import os

SECRET_KEY = "for tests"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["SHOP_DB"]}}
INSTALLED_APPS = os.environ["SHOP_APPS"].split(",")
USE_TZ = True
