"""Reverb's own client, which TF-Agents' observers write through."""

from __future__ import annotations

from .versions import describe_missing_reverb

try:
    import reverb
except ModuleNotFoundError as error:
    raise ImportError(describe_missing_reverb("the client of Reverb")) from error


def make_client(address: str) -> reverb.Client:
    """Returns a client of the server at an address, 'HOST:PORT'."""
    return reverb.Client(address)
