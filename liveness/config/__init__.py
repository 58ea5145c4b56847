"""Settings: validated once at start, passed down. Nothing else reads the environment."""
