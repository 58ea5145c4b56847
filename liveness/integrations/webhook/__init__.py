"""Reschedules sent to another engine as signed HTTP requests."""
