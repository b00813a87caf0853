"""Comparison with the `expected.json` of the datasets in `tests/data/formats`, which an independent reader computed.

A field is described by its dtype, its shape, and the first 16 digits of the SHA-256 of its bytes.
"""

import hashlib
import json
from pathlib import Path

import numpy as np

FORMATS = Path(__file__).parents[1] / "data" / "formats"


def read_expected(name):
    return json.loads((FORMATS / f"{name}.expected.json").read_text())


def describe_field(column):
    digest = hashlib.sha256(np.ascontiguousarray(column).tobytes()).hexdigest()[:16]
    return [column.dtype.name, list(column.shape), digest]
