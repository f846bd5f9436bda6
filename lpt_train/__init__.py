"""Training on admitted splits."""
