"""What commands print on the datasets in `tests/data`, and on what they write, equals `tests/data/printed`.

`PYTHONPATH=tests/support python tests/cli/test_recorded_output.py` writes all files again, or those of kinds.
"""

import contextlib
import io
import re
import sys
import tempfile
from pathlib import Path

import pytest
from properties import mark_slow_except

from rlds2reverb.cli import output
from rlds2reverb.cli.main import run

DATA = Path(__file__).parents[1] / "data"
FOLDER = DATA / "printed"
SMALL, ROBOT = "malformed/hdf5/ok_control.hdf5", "formats/rlds/a2/openx_boundary/1.0.0"

#: Arguments of `inspect` and `validate`: a dataset and its options.
SOURCES = {
    "d4rl": ["d4rl/invertedpendulum_random-v2.hdf5", "d4rl/pendulum_mixed-v2.hdf5 --reference-returns -1500,-150"],
    "rlds": [ROBOT, "formats/rlds/a1/pusher_demos/1.0.0 --split val", "formats/rlds/a3/roboturk_like/1.0.0",
             "formats/rlds/a4/nested_cameras/1.0.0", "rlds_prepared/robomimic_ph/lift_ph_low_dim/1.0.1"],
    "minari": ["minari/classic/pendulum-dict/dev-v0", "minari/mujoco/hopper/dev-v0"],
    "lerobot": ["formats/lerobot/v2.1/c1", "formats/lerobot/v3.0/c2", "formats/lerobot/v3.0/c3"],
    "robomimic": [f"formats/robomimic/{name}.hdf5" for name in ("d1_low_dim", "d2_image_no_next_obs", "d3_done_mode_1")],
    "arrays": ["formats/neorl/Hopper-v3-low-8-train-noise.npz", "formats/ogbench/cube-single-play-v0-val.npz",
               "formats/vd4rl/cartpole_swingup/64px", "formats/atari/replay_logs --load frame_stack=2"],
}  # fmt: skip
_FORMATS = ("d4rl", "minari --recompute-discounts", "lerobot --fps 10 --recompute-discounts", "rlds")
#: Arguments of `convert`.
WRITTEN = [
    *(f"{path} --format {name}" for path in (SMALL, ROBOT) for name in _FORMATS),
    f"{SMALL} --format robomimic",
    f"{SMALL} --n-step 3 --gamma 0.9 --layout packed --clip-actions",
    f"{SMALL} --sequence-length 5 --stride 2 --padding tile --priority return --discount-source step",
    f"{ROBOT} --whole-episodes",
]


def run_command(command, *arguments):
    """Returns the command, what it prints, and its exit code unless it is 0."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = run([command, *arguments])
    # The flags of steps, and warnings that depend on the version of Minari.
    lines = (
        line for line in printed.getvalue().splitlines() if not re.search(r"^\['is_|minari \S+ does not list", line)
    )
    return "\n".join(
        [
            f"$ {command} {' '.join(arguments)}",
            *map(str.rstrip, lines),
            *([f"exit code {code}"] if code else []),
            "",
            "",
        ]
    )


def make_documents(name, folder, written=WRITTEN):
    """Returns what commands print for a kind of sources, or for some written datasets."""
    printed = ""
    for arguments in SOURCES.get(name, ()):
        path, *options = arguments.split()
        printed += run_command("inspect", str(DATA / path), *options)
        printed += run_command("validate", str(DATA / path), *(options if "--reference-returns" not in options else ()))
    for number, arguments in enumerate(WRITTEN if name == "written" else ()):
        if arguments not in written:
            continue
        (source, *options), target = arguments.split(), str(folder / f"written-v{number}")
        printed += run_command("convert", str(DATA / source), "--out", target, *options)
        printed += run_command("inspect", target) + run_command("validate", target) if Path(target).exists() else ""
    printed = printed.replace(str(DATA), "DATA").replace(str(folder), "FOLDER")
    # Durations, and the sizes of files, which depend on the versions of libraries.
    return re.sub(
        r"(?<=per sec  )[\d,]+|[\d.,]+ m?s\b|(?<=size )  .* kB( on disk)?$",
        "N",
        printed,
        flags=re.MULTILINE,
    )


@pytest.mark.parametrize("name", mark_slow_except({*SOURCES} - {"rlds"}, [*SOURCES, "written"]))
def test_commands_print_what_is_recorded(name, tmp_path):
    assert make_documents(name, tmp_path) == (FOLDER / f"{name}.txt").read_text()


def test_commands_print_recorded_facts_about_items(tmp_path):
    items = [arguments for arguments in WRITTEN if arguments.startswith(SMALL) and "--format" not in arguments]
    assert len(items) == 2 and make_documents("written", tmp_path, items) in (FOLDER / "written.txt").read_text()


if __name__ == "__main__":
    output.SECS_BETWEEN_LINES = 600.0
    for kind in sys.argv[1:] or [*SOURCES, "written"]:
        with tempfile.TemporaryDirectory() as temporary:
            (FOLDER / f"{kind}.txt").write_text(make_documents(kind, Path(temporary)))
