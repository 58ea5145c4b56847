"""Evidence about a worker's death: its last heartbeats, stalls of this process, other deaths."""
