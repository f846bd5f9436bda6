"""Planning: what a model's shape says about memory, compute and time before anything is loaded. No torch."""
