"""Frozen encoders: the protocol they follow, and the loaders of the registry's libraries."""

from crsbench.encoders.base import Encoder, LoadedEncoder
from crsbench.encoders.registry import load_encoder

__all__ = ["Encoder", "LoadedEncoder", "load_encoder"]
