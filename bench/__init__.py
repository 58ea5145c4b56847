"""Side-by-side benchmarks: each figure is a ratio between two servers measured alternately in one run."""
