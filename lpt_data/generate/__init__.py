"""Data made by rule, for the demo, the tests and the benchmarks."""
