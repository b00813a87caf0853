"""The numbers of offline and of collected items in the batches of a cluster's learner."""

from rlds2reverb.training.cluster.reverb_comm_learner import ReplayTables


def test_batches_have_the_collected_share_after_the_offline_updates():
    assert ReplayTables(False, collected_ratio=0.5).split(8, 0) == (0, 8)
    assert ReplayTables(True).split(8, 100) == (8, 0)
    tables = ReplayTables(True, num_offline_updates=10, collected_ratio=0.25)
    assert [tables.split(8, step) for step in (0, 9, 10, 11)] == [(8, 0), (8, 0), (6, 2), (6, 2)]
    assert tables.split(1, 10) == (0, 1) and tables.split(3, 10) == (2, 1)
    assert ReplayTables(True, collected_ratio=1.0).split(5, 0) == (0, 5)
