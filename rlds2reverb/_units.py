"""Numbers as people read them."""

from __future__ import annotations


def bytes_text(num_bytes: float) -> str:
    """Returns bytes in the unit that fits: '512 bytes', '1.5 MB'."""
    if num_bytes < 1000:
        return f"{num_bytes:,.0f} bytes"
    for unit in ("kB", "MB", "GB"):
        num_bytes /= 1000
        if num_bytes < 1000:
            return f"{num_bytes:,.1f} {unit}"
    return f"{num_bytes / 1000:,.1f} TB"
