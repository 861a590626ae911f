"""Limits of a site, from the words of its clients."""

from __future__ import annotations

import pytest
from fake_slurm import FakeSlurm

from harness.launch.limits import gpus_in, least_submit, minutes_in
from harness.launch.scheduler import SchedulerError, user_name

CONFIG = """Configuration data as of 2026-11-30T00:11:22
AccountingStorageEnforce = {enforce}
ClusterName             = lab
MaxArraySize            = 1001
MaxJobCount             = 10000
SlurmctldParameters     = preempt_send_user_signal,x=y

Slurmctld(primary) at here is UP
"""
SINFO = """main*|up|infinite|4|16|200000|gpu:h200:8(S:0-1)
main*|up|infinite|2|128|1000000|(null)
scavenge|up|1-00:00:00|4|16|200000|gpu:h200:8
old|down|30:00|1|4+|1000|gpu
"""


def site(slurm: FakeSlurm, enforce: str = "none") -> None:
    slurm.says("scontrol", CONFIG.format(enforce=enforce))
    slurm.says("sinfo", SINFO)


def test_partitions_and_sizes(slurm: FakeSlurm) -> None:
    site(slurm)
    limits = slurm.client().limits()
    assert (limits.max_array_size, limits.max_job_count, limits.max_submit_jobs) == (1001, 10000, None)
    assert (limits.cluster, limits.default_partition) == ("lab", "main")
    main, scavenge, old = (limits.partitions[name] for name in ("main", "scavenge", "old"))
    assert (main.max_minutes, main.nodes, main.gpus_per_node, main.cpus_per_node, main.mem_mb, main.state) == (
        None,
        6,
        8,
        128,
        1000000,
        "up",
    )
    assert (scavenge.max_minutes, old.max_minutes, old.cpus_per_node, old.gpus_per_node) == (1440, 30, 4, 1)
    assert old.state == "down"
    assert main.nodes_with(8, 16, 200000) == 4  # the nodes with many cores have no GPU
    assert main.nodes_with(8, 17, 1) == 0
    assert main.nodes_with(0, 16, 200000) == 6
    assert slurm.calls("sacctmgr") == []  # a site that does not enforce limits has none


def test_limits_on_submission(slurm: FakeSlurm) -> None:
    site(slurm, "associations,limits,qos")
    slurm.says("sacctmgr", "lab|lab||400|normal,high|normal\n")
    assert slurm.client().limits().max_submit_jobs == 400
    calls = slurm.calls("sacctmgr")
    assert f"name={user_name()}" in calls[0] and "cluster=lab" in calls[0]
    assert "qos" in calls[1]


def test_a_site_that_does_not_answer(slurm: FakeSlurm) -> None:
    site(slurm)
    slurm.says("sinfo", error="slurm_load_partitions: Unable to contact slurm controller", status=1)
    with pytest.raises(SchedulerError, match="Unable to contact slurm controller"):
        slurm.client().limits()


ASSOCIATIONS = "lab|lab|500||normal,long|\nlab|other|20|1000|normal,long|normal\n"
CLASSES = "normal|300|| \nlong||40|\nhuge|||7\nstrict|5||\n"


@pytest.mark.parametrize(
    ("account", "qos", "least"),
    [
        (None, None, 40),  # of the default account, which names no default qos
        (None, "normal", 300),
        ("LAB", "huge", 7),
        ("lab", "strict", 5),
        ("other", None, 20),
        ("other", "unheard of", 20),
        ("nobody", "unheard of", None),
    ],
)
def test_the_strictest_limit_counts(account: str | None, qos: str | None, least: int | None) -> None:
    assert least_submit(ASSOCIATIONS, CLASSES, account, qos) == least


def test_the_default_qos_counts() -> None:
    assert least_submit("other|other|2000||normal,strict|normal\n", CLASSES, None, None) == 300


def test_without_a_default_account_all_count() -> None:
    assert least_submit("|a|9||normal|\n|b|8||normal|\n", "", None, None) == 8


def test_no_limit() -> None:
    assert least_submit("lab|lab|||normal|\n", "normal|||\n", None, None) is None
    assert least_submit("", "", None, None) is None


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", 0),
        ("", 0),
        ("gpu", 1),
        ("gpu:8", 8),
        ("gpu:h200:8", 8),
        ("gpu:h200:8(S:0-1)", 8),
        ("gpu:a100:4(S:0,1),gpu:v100:2(S:1),nvme:1", 6),
        ("mps:800,gpu:1", 1),
    ],
)
def test_gpus_of_a_node(gres: str, gpus: int) -> None:
    assert gpus_in(gres) == gpus


@pytest.mark.parametrize(
    ("limit", "minutes"),
    [
        ("infinite", None),
        ("n/a", None),
        ("30", 30),
        ("30:00", 30),
        ("2:00:00", 120),
        ("1-12", 2160),
        ("1-12:30", 2190),
        ("7-00:00:00", 10080),
        ("0:30", 1),
    ],
)
def test_time_limits(limit: str, minutes: int | None) -> None:
    assert minutes_in(limit) == minutes
