"""Reverb's own client, which TF-Agents' observers write through."""

from __future__ import annotations

import reverb


def make_client(address: str) -> reverb.Client:
    """Returns a client of the server at an address, 'HOST:PORT'."""
    return reverb.Client(address)
