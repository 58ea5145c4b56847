"""Reschedules and events published to NATS JetStream."""
