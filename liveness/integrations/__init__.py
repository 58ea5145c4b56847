"""Integrations with other systems: webhooks, the NATS relay, fencing of users' databases."""
