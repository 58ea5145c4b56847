"""Several nodes on one database: who lives, who owns what, and what they tell each other."""
