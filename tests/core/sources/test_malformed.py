"""Every malformed input that ships with the tests: accepted with the right counts, or refused in one sentence."""

import json
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from rlds2reverb.episodes import find_problems
from rlds2reverb.errors import SourceError
from rlds2reverb.sources import load


class Refused(str):
    """A pattern of the SourceError."""


class Invalid(str):
    """The beginning of a problem of an episode."""


# What each input comes to: (episodes, terminals, open ends) of a valid one, or one of the above.
HDF5 = {
    "ok_control.hdf5": (4, 4, 0),
    "missing_observations.hdf5": Refused(r"has no 'observations'"),
    "missing_actions.hdf5": Refused(r"has no 'actions'"),
    "missing_rewards.hdf5": Refused(r"has no 'rewards'"),
    "missing_terminals.hdf5": Refused(r"has no 'terminals'"),
    "missing_timeouts.hdf5": Refused(
        r"has no 'timeouts', .* give max_episode_steps=N .* or split_at_discontinuity=True"
    ),
    "len_rewards_short.hdf5": Refused(r"'observations' has 56 rows, 'rewards' has 55; expected equal"),
    "len_actions_long.hdf5": Refused(r"'actions' has 58 rows, 'rewards' has 56; expected equal"),
    "nan_reward.hdf5": Invalid("step['reward'] holds NaN. (episode 1, step 14, field reward)"),
    "inf_reward.hdf5": Invalid("step['reward'] holds Inf. (episode 1, step 14, field reward)"),
    "nan_observation.hdf5": Invalid("step['observation'] holds NaN. (episode 1, step 14, field observation)"),
    "float64_all.hdf5": (4, 4, 0),  # kept as it is; CastFloats casts
    "int_actions.hdf5": (4, 4, 0),  # integer actions are kept
    "terminals_int.hdf5": (4, 4, 0),
    "rewards_n1.hdf5": (4, 4, 0),
    "obs_scalar_rank.hdf5": Refused(
        r"'next_observations' has rows of float32 \[11\], 'observations' of float32 \[\]; expected equal"
    ),
    "zero_steps.hdf5": Refused(r"holds no rows"),
    "single_step.hdf5": (1, 1, 0),
    "unclosed_tail.hdf5": (4, 3, 1),  # the tail is kept, as a truncated episode
    "no_ends.hdf5": (1, 0, 1),
    "action_out_of_range.hdf5": (4, 4, 0),  # kept; ClipActions clips
    "string_rewards.hdf5": Refused(r"'rewards' holds byte strings, expected numbers"),
    "group_instead_of_dataset.hdf5": Refused(r"'actions' is a group, expected a data set"),
    "huge_attribute.hdf5": (4, 4, 0),
    "odd_key_names.hdf5": (4, 4, 0),
    "soft_link_loop.hdf5": (4, 4, 0),  # not followed
    "bomb_gzip.hdf5": (4, 4, 0),  # not read unless asked for
    "external_link_passwd.hdf5": Refused(
        r"'rewards' is a link into another file \('/etc/passwd'\); it is not followed"
    ),
    "external_link_sibling.hdf5": Refused(r"'observations' is a link into another file \('ok_control.hdf5'\)"),
    "empty.hdf5": Refused(r"is empty \(0 bytes\)"),
    "truncated_half.hdf5": Refused(r"is cut off or damaged"),
    "text.hdf5": Refused(r"is not an HDF5 file"),
    "zeros.hdf5": Refused(r"is not an HDF5 file"),
    "pickled_canary.npy": Refused(r"is a NumPy file or archive, expected HDF5"),
    "pickled_canary.npz": Refused(r"is a NumPy file or archive, expected HDF5"),
}

RLDS = {
    "ok_control": (3, 2, 0),
    "no_is_last": Invalid(
        "Mid step should not be followed by a first step. The episode ends here without is_last. (episode 1, "
    ),
    "terminal_mid": Invalid(
        "Terminal step must be the last step of an episode. It lacks is_last here. (episode 0, step 2, "
    ),
    "is_last_mid": Invalid("Last step of an episode must be followed by a first step. Here is_last stands before"),
    "no_is_first": Invalid(
        "Last step of an episode must be followed by a first step. The first step lacks is_first. (episode 1"
    ),
    "two_is_first": Invalid(
        "Mid step should not be followed by a first step. Here is_first stands inside the episode. (episode 2"
    ),
    "zero_length_episode": Invalid("The episode has no steps; remove it or skip it. (episode 1, field steps)"),
    "single_step": (3, 2, 0),
    "nan_reward": Invalid("step['reward'] holds NaN. (episode 0, step 1, field reward)"),
    "inf_observation": Invalid("step['observation'] holds Inf. (episode 0, step 1, field observation)"),
    "float64": (3, 2, 0),  # kept as it is; CastFloats casts
    "missing_is_terminal": Refused(r"a step lacks is_terminal"),
    "missing_discount": Refused(r"a step lacks discount"),
    "missing_reward": Refused(r"a step lacks reward"),
    "no_steps_key": Refused(r"No dataset representing RLDS steps exist in the data"),
    "truncated_tfrecord": Refused(r"is damaged at episode 1 \(truncated record at 317"),
    "missing_shard": Refused(r"lacks the shard bad_rlds-train.tfrecord-00000-of-00001"),
    "missing_features_json": Refused(r"has no features.json"),
    "bad_json": Refused(r"dataset_info.json is not valid JSON"),
    "traversal_name": Refused(r"name is '../../etc/x', which is not a plain name; refused"),
    "empty_dir": Refused(r"holds no data set"),
}


def test_every_input_of_the_manifests_has_an_expectation(data):
    manifest = json.loads((data / "malformed/hdf5/manifest.json").read_text())["files"]
    assert set(manifest) - {"not_utf8_\u00ff.hdf5", "dataset_names.json"} == set(HDF5)
    assert set(json.loads((data / "malformed/rlds/manifest.json").read_text())["dirs"]) == set(RLDS)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [(f"hdf5/{name}", wanted) for name, wanted in HDF5.items()]
    + [(f"rlds/{name}", wanted) for name, wanted in RLDS.items()],
)
def test_malformed_input(data, name, wanted):
    path = data / "malformed" / name
    if isinstance(wanted, Refused):
        with pytest.raises(SourceError, match=wanted) as caught:
            list(load(path))
        assert "\n" not in str(caught.value)
        return
    source = load(path)
    many = list(source)
    problems = [str(problem) for episode in many for problem in find_problems(episode, source.step_spec)]
    if isinstance(wanted, tuple):
        assert problems == []
        assert (len(many), sum(e.is_terminal for e in many), sum(e.unterminated for e in many)) == wanted
    else:
        assert any(problem.startswith(wanted) for problem in problems), problems


def test_a_file_name_that_is_not_ascii_is_fine(data, tmp_path):
    shutil.copy(data / "malformed/hdf5/ok_control.hdf5", tmp_path / "not_utf8_\u00ff.hdf5")
    assert len(list(load(tmp_path / "not_utf8_\u00ff.hdf5"))) == 4


def test_hostile_names_are_refused_and_nothing_is_touched(data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    names = json.loads((data / "malformed/hdf5/dataset_names.json").read_text())
    outside = [Path("/tmp/pwn"), Path("/tmp/x")]
    were_there = [path.exists() for path in outside]
    # A path that is there is a path: it is opened, and refused for what it is.
    for name in names:
        with pytest.raises((SourceError, FileNotFoundError)) as caught:
            load(name, data_dir=tmp_path / "tfds")
        assert len(str(caught.value)) < 700
    assert {entry.name for entry in tmp_path.rglob("*")} <= {"tfds", "minari", "downloads"}
    assert [path.exists() for path in outside] == were_there


def test_nothing_is_unpickled_and_memory_stays_under_200_megabytes(data):
    """In a process of its own: peak memory over all malformed HDF5 files, the bomb included."""
    program = textwrap.dedent(
        """
        import re, sys
        from pathlib import Path
        from rlds2reverb.sources import SourceError, load
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
