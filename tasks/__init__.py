"""What has to happen later: lease expiry, worker clean-up, activity rescheduling."""
