"""Other systems: webhooks, the NATS relay, fencing of users' databases."""
