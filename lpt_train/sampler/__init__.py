"""Samplers: they draw completions from the trainer's own parameters and record what they drew."""
