"""Encoding of items as Reverb messages: item blocks, keys, chunks, packed columns and record files."""
