"""What is known about a worker's death: heartbeats, stalls, other deaths."""
