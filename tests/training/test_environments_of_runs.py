"""The environments of a run: evaluations that a signal stops, and environments that cannot be created."""

import itertools
import os
import signal

import gymnasium
import pytest
from counting import Counting

from rlds2reverb import Training, TrainingConfig
from rlds2reverb.envs import record_episodes
from rlds2reverb.learners.csv_log import read_csv_log
from rlds2reverb.training import Progress


class Signalling(Counting):
    """An environment that sends SIGTERM to its process after a number of steps of all environments, once."""

    steps_left = None

    def step(self, action):
        if Signalling.steps_left is not None:
            Signalling.steps_left -= 1
        if Signalling.steps_left == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().step(action)


@pytest.mark.slow
@pytest.mark.parametrize("evaluated_at", [0, 10])
def test_evaluation_that_a_signal_stops_is_made_up_for_by_the_resumed_run(evaluated_at, tmp_path):
    source = record_episodes(lambda: Counting(9), num_episodes=6)
    config = TrainingConfig("dqn", env=Signalling, steps=20, eval_every=10, eval_episodes=2, batch_size=8,
                            hyperparameters={"hidden_sizes": (8,)})  # fmt: skip
    stopped = []
    steps_before = 2 * 20 if evaluated_at else 0  # Those of the first evaluation.
    for name, moments in (("whole", [None]), ("stopped", [steps_before + 3, None])):
        for Signalling.steps_left in moments:
            with Training(source, config, tmp_path / name) as training:
                training.run()
                stopped.append((training.learner.stop_reason, training.learner.step))
            if stopped[-1][0]:
                log = read_csv_log(tmp_path / name / "evaluations.csv")
                assert list(log.get("step", ())) == [0] * bool(evaluated_at)
    assert stopped == [("", 20), ("SIGTERM", evaluated_at), ("", 20)]
    logs = [(tmp_path / name / "evaluations.csv").read_text().splitlines() for name in ("whole", "stopped")]
    assert logs[0] == logs[1] and [row.split(",")[0] for row in logs[0]] == ["step", "0", "10", "20"]


def test_environment_that_cannot_be_created_for_collecting_fails_before_the_first_update(tmp_path):
    source, number = record_episodes(lambda: Counting(9), num_episodes=6), itertools.count()

    def make():
        if next(number):  # The first one is that of the evaluator.
            raise RuntimeError("no licence")
        return Counting(9)

    config = TrainingConfig("dqn", env=make, steps=20, online_steps=30, warmup_steps=1, batch_size=8)
    with pytest.raises(RuntimeError, match="no licence"):
        Training(source, config, tmp_path)
    assert not (tmp_path / "config.json").exists() and not list(tmp_path.glob("checkpoints/*"))


def test_environment_without_a_time_limit_is_noted_when_the_run_is_created(tmp_path, capsys):
    source = record_episodes(lambda: Counting(9), num_episodes=3)
    for env in (lambda: Counting(9), lambda: gymnasium.wrappers.TimeLimit(Counting(9), 9)):
        config = TrainingConfig("dqn", env=env, steps=5, batch_size=8)
        with Training(source, config, tmp_path / str(id(env)), progress=Progress(quiet=True)):
            pass
    notes = capsys.readouterr().err
    assert notes.count("has no time limit; evaluations truncate episodes after 10,000 steps") == 1
