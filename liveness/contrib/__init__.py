"""Liveness in programs that are built on other frameworks, a module for each: Celery, Django, Starlette and FastAPI."""
