"""Losses as pure functions of named tensors, in float32."""
