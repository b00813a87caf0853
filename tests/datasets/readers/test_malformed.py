"""Tests that every malformed input in the test data is read with the right counts, or raises a one-line error."""

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from properties import mark_slow_except

from rlds2reverb.datasets import load
from rlds2reverb.errors import SourceError
from rlds2reverb.types.episodes import find_errors


class Error(str):
    """The pattern of the SourceError that reading raises."""


class Invalid(str):
    """The beginning of an error that `find_errors` reports."""


# The expected result for each input: (episodes, terminals, unterminated episodes), or one of the classes above.
HDF5 = {
    "ok_control.hdf5": (4, 4, 0),
    "missing_observations.hdf5": Error(r"has no 'observations'"),
    "missing_actions.hdf5": Error(r"has no 'actions'"),
    "missing_rewards.hdf5": Error(r"has no 'rewards'"),
    "missing_terminals.hdf5": Error(r"has no 'terminals'"),
    "missing_timeouts.hdf5": Error(r"has no 'timeouts', .* \(max_episode_steps or split_at_discontinuity=True\)"),
    "len_rewards_short.hdf5": Error(r"'observations' must have as many rows as 'rewards' \(55\), got 56"),
    "len_actions_long.hdf5": Error(r"'actions' must have as many rows as 'rewards' \(56\), got 58"),
    "nan_reward.hdf5": Invalid("step['reward'] holds NaN. (episode 1, step 14, field reward)"),
    "inf_reward.hdf5": Invalid("step['reward'] holds Inf. (episode 1, step 14, field reward)"),
    "nan_observation.hdf5": Invalid("step['observation'] holds NaN. (episode 1, step 14, field observation)"),
    "float64_all.hdf5": (4, 4, 0),  # Kept unchanged; CastFloats casts it.
    "int_actions.hdf5": (4, 4, 0),  # Integer actions are kept.
    "terminals_int.hdf5": (4, 4, 0),
    "rewards_n1.hdf5": (4, 4, 0),
    "obs_scalar_rank.hdf5": Error(r"rows of 'next_observations' must be float32 \[\] .*, got float32 \[11\]"),
    "zero_steps.hdf5": Error(r"has no rows"),
    "single_step.hdf5": (1, 1, 0),
    "unclosed_tail.hdf5": (4, 3, 1),  # The last rows are kept as a truncated episode.
    "no_ends.hdf5": (1, 0, 1),
    "action_out_of_range.hdf5": (4, 4, 0),  # Kept; ClipActions clips them.
    "string_rewards.hdf5": Error(r"'rewards' must contain numbers .*, got byte strings"),
    "group_instead_of_dataset.hdf5": Error(r"'actions' must be a dataset of numbers, got a group"),
    "huge_attribute.hdf5": (4, 4, 0),
    "odd_key_names.hdf5": (4, 4, 0),
    "soft_link_loop.hdf5": (4, 4, 0),  # Not followed.
    "bomb_gzip.hdf5": (4, 4, 0),  # Only read as an extra field.
    "external_link_passwd.hdf5": Error(r"'rewards' is a link to another file \('/etc/passwd'\); copy the data"),
    "external_link_sibling.hdf5": Error(r"'observations' is a link to another file \('ok_control.hdf5'\)"),
    "empty.hdf5": Error(r"is empty \(0 bytes\)"),
    "truncated_half.hdf5": Error(r"is truncated or damaged"),
    "text.hdf5": Error(r"is not an HDF5 file"),
    "zeros.hdf5": Error(r"is not an HDF5 file"),
    "pickled_canary.npy": Error(r"must be HDF5, got a NumPy file or archive"),
    "pickled_canary.npz": Error(r"'observations' contains Python objects, which are not unpickled"),
}

RLDS = {
    "ok_control": (3, 2, 0),
    "no_is_last": Invalid(
        "Mid step should not be followed by a first step. is_last is not set on the last step. (episode 1, "
    ),
    "terminal_mid": Invalid(
        "Terminal step must be the last step of an episode. is_last is not set here. (episode 0, step 2, "
    ),
    "is_last_mid": Invalid("Last step of an episode must be followed by a first step. is_last is set before"),
    "no_is_first": Invalid(
        "Last step of an episode must be followed by a first step. is_first is not set on the first step. (episode 1"
    ),
    "two_is_first": Invalid(
        "Mid step should not be followed by a first step. is_first is set inside the episode. (episode 2"
    ),
    "zero_length_episode": Invalid("The episode has no steps; remove or skip it. (episode 1, field steps)"),
    "single_step": (3, 2, 0),
    "nan_reward": Invalid("step['reward'] holds NaN. (episode 0, step 1, field reward)"),
    "inf_observation": Invalid("step['observation'] holds Inf. (episode 0, step 1, field observation)"),
    "float64": (3, 2, 0),  # Kept unchanged; CastFloats casts it.
    "missing_is_terminal": (3, 2, 0),  # Derived, or assumed with a warning; see test_rlds_conventions.py.
    "missing_discount": (3, 2, 0),  # Derived, or assumed with a warning; see test_rlds_conventions.py.
    "missing_reward": (3, 2, 0),  # Derived, or assumed with a warning; see test_rlds_conventions.py.
    "no_steps_key": Error(r"No dataset representing RLDS steps exist in the data"),
    "truncated_tfrecord": Error(r"is damaged at episode 1 \(truncated record at 317"),
    "missing_shard": Error(r"is missing the shard bad_rlds-train.tfrecord-00000-of-00001"),
    "missing_features_json": Error(r"has no features.json"),
    "bad_json": Error(r"dataset_info.json cannot be read as JSON"),
    "traversal_name": Error(r"name must be a plain name, got '../../etc/x'; refused"),
    "empty_dir": Error(r"contains no dataset"),
}


FAST = {"ok_control", "no_is_last", "terminal_mid", "two_is_first", "zero_length_episode", "inf_observation"}


def test_every_input_in_the_manifests_has_an_expected_result(data):
    manifest = json.loads((data / "malformed/hdf5/manifest.json").read_text())["files"]
    assert set(manifest) - {"not_utf8_\u00ff.hdf5", "dataset_names.json"} == set(HDF5)
    assert set(json.loads((data / "malformed/rlds/manifest.json").read_text())["dirs"]) == set(RLDS)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((f"hdf5/{name}", expected) for name, expected in HDF5.items()),
        # Most directories that can be read take longer than HDF5 files, or have other tests.
        *mark_slow_except(
            [(f"rlds/{name}", RLDS[name]) for name in RLDS if name in FAST or isinstance(RLDS[name], Error)],
            [(f"rlds/{name}", expected) for name, expected in RLDS.items()],
        ),
    ],
)
@pytest.mark.drill("F21")
def test_malformed_input_is_read_or_raises(data, name, expected):
    path = data / "malformed" / name
    if isinstance(expected, Error):
        with pytest.raises(SourceError, match=expected) as caught:
            list(load(path))
        assert "\n" not in str(caught.value)
        return
    source = load(path)
    episodes = list(source)
    errors = [str(error) for episode in episodes for error in find_errors(episode, source.step_spec)]
    if isinstance(expected, tuple):
        assert errors == []
        num_terminals, num_unterminated = sum(e.is_terminal for e in episodes), sum(e.unterminated for e in episodes)
        assert (len(episodes), num_terminals, num_unterminated) == expected
    else:
        assert any(error.startswith(expected) for error in errors), errors


def test_file_with_a_non_ascii_name_is_read(data, tmp_path):
    shutil.copy(data / "malformed/hdf5/ok_control.hdf5", tmp_path / "not_utf8_\u00ff.hdf5")
    assert len(list(load(tmp_path / "not_utf8_\u00ff.hdf5"))) == 4


@pytest.mark.drill("F22")
def test_hostile_names_raise_and_create_no_files(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    names = json.loads((data / "malformed/hdf5/dataset_names.json").read_text())
    outside = [Path("/tmp/pwn"), Path("/tmp/x")]
    existed = [path.exists() for path in outside]
    # Some of these names are existing paths; load opens them and raises because of their content.
    for name in names:
        with pytest.raises((SourceError, FileNotFoundError)) as caught:
            load(name, data_dir=tmp_path / "tfds")
        assert len(str(caught.value)) < 700
    assert {entry.name for entry in tmp_path.rglob("*")} <= {"tfds", "minari", "downloads"}
    assert [path.exists() for path in outside] == existed


@pytest.mark.slow
@pytest.mark.drill("F23")
def test_malformed_files_use_little_memory_and_are_not_unpickled(data):
    """Measures, in a separate process, the peak memory over all malformed HDF5 files, including the bomb."""
    program = textwrap.dedent(
        """
        import re, sys
        from pathlib import Path
        from rlds2reverb.datasets import load
        from rlds2reverb.errors import SourceError
        read = 0
        for path in sorted(Path(sys.argv[1]).iterdir()):
            for options in ({}, {"extra_fields": ["zeros"]}, {"max_episode_steps": 10}):
                try:
                    read += sum(episode.num_steps for episode in load(path, **options))
                except SourceError:
                    pass
        print(read, int(re.search("VmHWM: *\\t*([ 0-9]+) kB", open("/proc/self/status").read())[1]) // 1024)
        """
    )
    folder = data / "malformed/hdf5"
    out = subprocess.run([sys.executable, "-c", program, str(folder)], capture_output=True, text=True, timeout=120)
    assert out.returncode == 0, out.stderr
    read, megabytes = map(int, out.stdout.split())
    assert read > 500 and megabytes < 200
    assert not Path("/tmp/R2R_PICKLE_CANARY").exists()
