"""Explanations of why a server accepts no items, or returns no samples."""

from __future__ import annotations

from collections.abc import Sequence

from rlds2reverb.errors import ServerUnavailableError

from .connection import table_infos

_MAX_INFO_SECS = 5.0


def explain_blocked_inserts(address: str, table_names: Sequence[str], waited_secs: float) -> str:
    """Explains why a server did not accept items: it no longer answers, is slow, or its rate limiter blocks."""
    waited = f"waited {waited_secs:g} s for {address} to accept items"
    try:
        infos = table_infos(address, timeout_secs=_info_timeout(waited_secs))
    except ServerUnavailableError:
        return f"{waited}, and it no longer answers; start it again and resume"
    states = []
    for name in table_names:
        limiter = infos[name].rate_limiter_info
        inserted, sampled = limiter.insert_stats.completed, limiter.sample_stats.completed
        states.append(f"table {name!r} has {inserted} inserted, {sampled} sampled")
    return (
        f"{waited}; it is slow, or its rate limiter blocks: {'; '.join(states)}. Sample from the table, or serve it "
        "with the rate limiter min_size:1"
    )


def explain_missing_samples(address: str, table: str, waited_secs: float) -> str:
    """Explains why a table returned no samples: the server or the table is gone, or its rate limiter waits."""
    waited = f"waited {waited_secs:g} s for a sample of table {table!r} at {address}"
    try:
        info = table_infos(address, timeout_secs=_info_timeout(waited_secs))[table]
    except (ServerUnavailableError, KeyError):
        return f"{waited}, and it is gone; start the server again"
    limiter = info.rate_limiter_info
    is_too_small = info.current_size < limiter.min_size_to_sample
    return (
        f"{waited}: it has {info.current_size} items, {limiter.insert_stats.completed} were inserted and "
        f"{limiter.sample_stats.completed} sampled; its rate limiter waits for "
        + (f"{limiter.min_size_to_sample} items" if is_too_small else "more insertions")
    )


def _info_timeout(waited_secs: float) -> float:
    return min(_MAX_INFO_SECS, max(1.0, waited_secs))
