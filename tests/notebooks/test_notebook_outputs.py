"""How outputs of notebooks are stored and compared, without running one."""

import base64
import io

import numpy as np
import pytest
from notebook_outputs import agree, clean, find_differences
from PIL import Image


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("saved in /tmp/tests-x/tmpab12_cde/items\n", "saved in RUNS/items\n"),
        ("{'path': '/home/me/r2r/tests/data/d4rl/x.hdf5'}", "{'path': 'DATA/d4rl/x.hdf5'}"),
        ("1,000 of 2,000   loss 0.1", "1,000 of 2,000   loss 0.1"),
    ],
)
def test_clean_replaces_paths(text, stored):
    for output in ({"text": text}, {"data": {"text/plain": text}, "metadata": {"isolated": True}}):
        cleaned = clean({"output_type": "any", **output})
        assert "".join(cleaned.get("text") or cleaned["data"]["text/plain"]) == stored
        assert not cleaned.get("metadata")


def test_clean_reduces_the_colours_of_images():
    pixels = np.random.default_rng(0).integers(0, 256, (40, 40, 4), np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    png = base64.b64encode(file.getvalue()).decode()
    cleaned = clean({"output_type": "display_data", "data": {"image/png": png}, "metadata": {}})["data"]["image/png"]
    image = Image.open(io.BytesIO(base64.b64decode(cleaned)))
    assert image.size == (40, 40)
    assert len(np.unique(np.asarray(image.convert("RGB")).reshape(-1, 3), axis=0)) <= 256
    assert len(cleaned) < len(png) / 2


@pytest.mark.parametrize(
    ("stored", "new"),
    [
        ("return -515.2", "return  -515.9"),
        ("mean [1. 2.5]", "mean [1.   2.5 ]"),
        ("10,202 items in 1.2 s", "10,202 items in 14 s"),
        (
            "loss 0.1   1,234 updates/s   data wait 3%   12 s left",
            "loss 0.1   99 updates/s   data wait 41%   1.5 min left",
        ),
        ("fingerprint  xxh128 38a619b1e0502c07", "fingerprint  xxh128 a52b986a13392d0c"),
        ("nan", "nan"),
    ],
)
def test_texts_with_close_numbers_and_different_durations_agree(stored, new):
    assert agree(stored, new)


@pytest.mark.parametrize(
    ("stored", "new"),
    [
        ("return -515.2", "return -523.0"),
        ("0 errors", "1 errors"),
        ("valid", "INVALID"),
        ("1 2", "1 2 3"),
        ("nan", "0"),
    ],
)
def test_different_numbers_and_words_disagree(stored, new):
    assert not agree(stored, new)


def test_numbers_and_repeated_lines_may_differ_in_cells_that_vary():
    assert agree("killed after 2 s\nloss 0.1", "killed after 2 s\nkilled after 3 s\nloss 0.7", exactly=False)
    assert not agree("loss 0.1", "error 0.7", exactly=False)


@pytest.mark.parametrize(("tags", "num_differences"), [([], 1), (["varies"], 0)])
def test_find_differences_compares_the_numbers_of_cells_without_the_tag(tags, num_differences):
    def make(text):
        output = {"output_type": "stream", "name": "stdout", "text": [text]}
        cell = {"cell_type": "code", "metadata": {"tags": tags}, "source": "print(x)", "outputs": [output]}
        return {"cells": [{"cell_type": "markdown", "metadata": {}, "source": "Text."}, cell]}

    differences = find_differences(make("return 1.0\n"), make("return 2.0\n"))
    assert len(differences) == num_differences
    assert all("print(x)" in text and "return 1.0" in text and "return 2.0" in text for text in differences)


def test_find_differences_reports_a_missing_image():
    def make(outputs):
        return {"cells": [{"cell_type": "code", "metadata": {}, "source": "plot()", "outputs": outputs}]}

    image = {"output_type": "display_data", "data": {"image/png": "", "text/plain": "<Figure>"}, "metadata": {}}
    assert find_differences(make([image]), make([image])) == []
    assert len(find_differences(make([image]), make([]))) == 1
