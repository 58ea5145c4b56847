"""Doors: clients of other systems find here what they know, answered by liveness."""
