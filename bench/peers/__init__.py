"""Other servers, for real, as child processes: each says what it promises and what it does not."""
