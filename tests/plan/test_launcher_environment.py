"""Who has started this process as one rank of many, from the variables that torchrun and Slurm
22.05 set.
"""

from __future__ import annotations

import pytest

from forge.config.parallel import Parallel
from forge.config.problems import ConfigError
from forge.config.run import Run
from forge.planning.launcher_environment import (
    LauncherEnvironment,
    first_node,
    launcher_environment,
)
from forge.planning.world import Devices, find_world

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "MASTER_ADDR": "host7",
    "MASTER_PORT": "29500",
}
SRUN = {
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_NODELIST": "node[1-4]",
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NODELIST": "node[3-4]",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
BATCH = {
    "SLURM_JOB_ID": "2",
    "SLURM_JOB_NODELIST": "node1",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "4",
    "SLURM_PROCID": "0",
}

BOTH = "RANK WORLD_SIZE"


def srun(**changed: str | None) -> dict[str, str]:
    return {name: value for name, value in {**SRUN, **changed}.items() if value is not None}


def test_torchrun() -> None:
    found = launcher_environment(TORCHRUN)
    assert found == LauncherEnvironment(
        rank=3, size=4, local_rank=1, source="WORLD_SIZE", address="host7", port=29500
    )
    assert found is not None
    assert found.variables() == TORCHRUN


def test_srun_gives_what_torch_reads() -> None:
    found = launcher_environment(SRUN)
    assert found is not None
    assert found.source == "SLURM_STEP_NUM_TASKS"
    port = str(15000 + 37 * 12 + 2)
    assert found.variables() == {
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "node3",
        "MASTER_PORT": port,
    }


def test_torchrun_within_srun_is_torchrun() -> None:
    assert launcher_environment({**SRUN, **TORCHRUN}) == launcher_environment(TORCHRUN)


def test_an_older_slurm_without_the_tasks_of_a_step() -> None:
    found = launcher_environment(srun(SLURM_STEP_NUM_TASKS=None, SLURM_STEP_NODELIST=None))
    assert found is not None
    assert (found.size, found.source, found.address) == (2, "SLURM_NTASKS", "node1")


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"WORLD_SIZE": "4"},
        {"RANK": "0"},
        BATCH,
        {
            "SLURM_JOB_ID": "3",
            "SLURM_JOB_NODELIST": "node1",
            "SLURM_NTASKS": "3",
        },  # a shell of salloc
        srun(SLURM_STEP_NUM_TASKS="1", SLURM_PROCID="0"),
        srun(SLURM_STEP_ID="4294967291"),  # the batch step
        srun(SLURM_STEP_ID="4294967290"),  # the interactive step
    ],
)
def test_an_ordinary_run(environ: dict[str, str]) -> None:
    assert launcher_environment(environ) is None


def test_steps_side_by_side_and_jobs_one_after_another_have_ports_of_their_own() -> None:
    found = [
        launcher_environment(srun(SLURM_JOB_ID=str(job), SLURM_STEP_ID=str(step)))
        for job in (999999, 1000000)
        for step in range(30)
    ]
    ports = [one.port for one in found if one is not None]
    assert len(set(ports)) == 60
    assert all(15000 <= port < 30000 for port in ports)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("n[003-128,200]", "n003"),
        ("a[07,09]-ib,b1", "a07-ib"),
        ("rack[2-3]n[04-07]", "rack2n04"),
    ],
)
def test_the_first_node_of_a_list(nodes: str, first: str) -> None:
    assert first_node(nodes) == first


@pytest.mark.parametrize(
    ("environ", "key", "limits", "fix"),
    [
        ({**TORCHRUN, "WORLD_SIZE": "two"}, "WORLD_SIZE=two", "1 to 1000000.", "WORLD_SIZE"),
        ({**TORCHRUN, "RANK": "4"}, "RANK=4", "0 to 3.", BOTH),
        ({**TORCHRUN, "MASTER_PORT": ""}, "MASTER_PORT=", "1 to 65535; it is not set.", BOTH),
    ],
)
def test_a_wrong_number_is_named(environ: dict[str, str], key: str, limits: str, fix: str) -> None:
    with pytest.raises(ConfigError) as caught:
        launcher_environment(environ)
    assert str(caught.value).splitlines()[1:] == [
        f"  1. {key}   [environment]",
        f"     {key.partition('=')[0]} must be a number from {limits}",
        f"     -> start it by torchrun or srun, which set it, or without: unset {fix}",
    ]


@pytest.mark.parametrize(
    ("environ", "size", "elsewhere"), [(SRUN, 2, True), (TORCHRUN, 4, True), (BATCH, 3, False)]
)
def test_the_world_is_the_launchers(environ: dict[str, str], size: int, elsewhere: bool) -> None:
    found = find_world(Run(num_processes=3), Parallel(), Devices(gpus=1, source="NVML"), environ)
    assert (found.size, found.elsewhere) == (size, elsewhere)


def test_an_address_that_the_user_gives_is_taken() -> None:
    found = launcher_environment(srun(MASTER_ADDR="10.0.0.1", MASTER_PORT="7"))
    assert found is not None
    assert (found.address, found.port) == ("10.0.0.1", 7)


def test_a_missing_address_is_named() -> None:
    with pytest.raises(ConfigError) as caught:
        launcher_environment({**TORCHRUN, "MASTER_ADDR": ""})
    assert str(caught.value).splitlines()[1:] == [
        "  1. MASTER_ADDR=   [environment]",
        "     the host of rank 0 is not set.",
        "     -> MASTER_ADDR=<host>, or unset RANK WORLD_SIZE",
    ]
