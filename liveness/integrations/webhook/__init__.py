"""Reschedules as signed HTTP requests."""
