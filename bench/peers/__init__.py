"""Other servers as child processes; each module states what its server promises and what it does not."""
