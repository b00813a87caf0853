"""The line that describes the state of a run on a cluster."""

from types import SimpleNamespace

from rlds2reverb.training.cluster.status import format_status

STATUS = {
    "step": 1500,
    "updates_per_sec": 1234.5,
    "loss": 0.123456,
    "num_collectors": 2,
    "collected_steps": 3000,
    "collected_per_sec": 59.6,
    "policy_age_updates": 1100,
    "policy_age_secs": 2.25,
    "updates_per_step": 0.5,
    "replay_size": {"data": 10_000, "collected": 20},
    "num_shards": 3,
    "evaluation": {"step": 1000, "mean_return": 2345.67, "score": 71.25},
}


def test_status_describes_what_the_run_has():
    config = SimpleNamespace(num_updates=20_000, online_steps=5000)
    assert format_status(STATUS, config).split("   ") == [
        "",
        " 1,500 of 20,000",
        "1,234 updates/s",
        "loss 0.1235",
        "2 collectors: 3,000 steps, 60/s",
        "policy 1,100 updates, 2.2 s old",
        "0.50 updates/step",
        "3 replay servers: 10,000 data, 20 collected",
        "return 2,345.7 score 71.2 at 1,000",
    ]
    early = {**STATUS, "loss": None, "replay_size": {}, "evaluation": None}
    offline = format_status(early, SimpleNamespace(num_updates=20_000, online_steps=0))
    assert offline.split("   ")[-2:] == ["1,234 updates/s", "3 replay servers: empty"]
    unscored = format_status({**STATUS, "evaluation": {"step": 5, "mean_return": 7.0}}, config)
    assert unscored.endswith("   return 7.0 at 5")
