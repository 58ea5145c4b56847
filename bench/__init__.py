"""Side-by-side benchmarks: each figure is a ratio between two sides measured by turns in one run."""
