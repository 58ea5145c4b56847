"""Several nodes on one database: which nodes are alive, which node owns which shard, and the hints between them."""
