"""The operation of mappings that turns texts into vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlds2reverb.errors import SourceError
from rlds2reverb.system.references import resolve_reference
from rlds2reverb.types.nest_paths import get_part
from rlds2reverb.types.specs import Nest, describe

from .mapped_source import MappedSource, change_steps, insert_part


def embed_texts(dataset: MappedSource, texts: Mapping[str, Any]) -> MappedSource:
    """Embeds texts by a function from a text to a vector of floats: `{text: {"by": "module:function", "as": new}}`.

    The function is called once for each different text. The last step of an episode has the vector of the step before
    if its own text is empty.
    """
    for path, value in texts.items():
        dataset = _embed_text(dataset, path, value)
    return dataset


def _embed_text(dataset: MappedSource, path: str, value: Any) -> MappedSource:
    keys, spec = dataset.get_leaf(path)
    if not isinstance(value, Mapping) or value.keys() != {"by", "as"}:
        raise SourceError(f"{path!r} must have a function 'by' and a path 'as', got {value!r}")
    if spec.dtype != object or spec.shape:
        raise SourceError(f"{path!r} must be a text in each step, got {describe(spec)}")
    embed = _remember(resolve_reference("by", value["by"]), value["by"])

    def add(steps: dict[str, Nest]) -> dict[str, Nest]:
        texts = list(get_part(steps, keys))
        if len(texts) > 1 and not texts[-1]:
            texts[-1] = texts[-2]
        return insert_part(steps, value["as"], np.stack([embed(text) for text in texts]))

    return change_steps(dataset, add, names=dataset.names)


def _remember(function: Callable[[str], Any], reference: str) -> Callable[[bytes | str], np.ndarray]:
    """Returns a function from a text to its vector, which is computed once.

    Raises:
      SourceError: From the returned function, if the vectors differ in shape, or are no finite floats.
    """
    known: dict[bytes | str, np.ndarray] = {}

    def embed(text: bytes | str) -> np.ndarray:
        if text not in known:
            decoded = text.decode() if isinstance(text, bytes) else text
            vector = np.asarray(function(decoded), np.float32)
            first = next(iter(known.values()), vector)
            if vector.ndim != 1 or vector.shape != first.shape or not np.isfinite(vector).all():
                shapes = f"{list(first.shape)} for the first" if vector.shape != first.shape else "finite numbers"
                raise SourceError(
                    f"{reference} must return vectors of one size, {shapes}, got {list(vector.shape)} for {decoded!r}"
                )
            known[text] = vector
        return known[text]

    return embed
