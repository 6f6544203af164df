"""Frozen encoders: the protocol they follow, and the loaders of the registry's libraries."""

from crsbench.encoders.base import BlockEncoder, Encoder, LoadedEncoder
from crsbench.encoders.registry import load_encoder

__all__ = ["BlockEncoder", "Encoder", "LoadedEncoder", "load_encoder"]
