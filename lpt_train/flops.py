"""The floating-point operations of a decoder, as MFU counts them: what a run measures and what a plan foresees alike.

One convention, that of PaLM (Chowdhery et al. 2022, arXiv 2204.02311, appendix B). A value of a matrix costs two
operations a token forward, two for the gradient of the input and, where it trains, two for its own: 6 N when all
train, 4 N under an adapter, whose own values cost six. Attention multiplies queries with keys and scores with values:
4 · layers · width a pair of tokens forward, twice that backward, and the whole square of a row is counted, though a
causal kernel does about half of it. The vocabulary head counts for the tokens that it is applied to. Norms, biases,
looked up embeddings, and what is computed twice to save memory do not count.
"""

from __future__ import annotations


def matrix_forward(values: float) -> float:
    """Of one token that is multiplied with matrices of so many values."""
    return 2.0 * values


def matrix_backward(values: float, *, trained: bool) -> float:
    """Of the gradients of one token: of the input, and of the values where they are trained."""
    return (4.0 if trained else 2.0) * values


def attention_forward(layers: int, width: int) -> float:
    """Of one pair of tokens, in all layers; `width` is heads times the size of a head."""
    return 4.0 * layers * width


def attention_backward(layers: int, width: int) -> float:
    """Of the gradients of one pair of tokens."""
    return 2.0 * attention_forward(layers, width)
