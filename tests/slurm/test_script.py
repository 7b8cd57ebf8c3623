"""What Slurm is given: machines by the ranks, arrays by the machines, the script; and what is
refused before. No Slurm is needed.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge import cli
from forge.config.launch import Slurm
from forge.config.problems import ConfigError, Problem
from forge.launch import jobs
from forge.launch.local.processes import search_path
from forge.launch.slurm import jobs as slurm
from forge.launch.slurm.script import ENDS, grouped
from forge.plan.allocation import Allocation, allocation, faults


def needs(nodes: int, tasks: int, gpus: int) -> Allocation:
    return Allocation(nodes=nodes, tasks_per_node=tasks, gpus_per_node=gpus)


@pytest.fixture(autouse=True)
def _unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts are looked at here, whatever a Slurm of this machine says of them."""
    monkeypatch.setattr(slurm, "verdict", lambda *_: [])


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put a command on PATH that says what it is told to, and only that."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")

    def make(name: str, script: str) -> None:
        (tmp_path / "bin").mkdir(exist_ok=True)
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    return make


@pytest.mark.parametrize(
    ("world", "options", "expected"),
    [
        (1, {}, needs(1, 1, 1)),
        (4, {}, needs(1, 4, 4)),
        (4, {"gpus_per_node": 0}, needs(1, 4, 0)),
        (16, {"gpus_per_node": 8}, needs(2, 8, 8)),
        (16, {"nodes": 4}, needs(4, 4, 4)),
        (2, {"gpus_per_node": 8}, needs(1, 2, 2)),  # no more of a machine than there are ranks
        (8, {"gpus_per_node": 0, "tasks_per_node": 2}, needs(4, 2, 0)),
        (8, {"nodes": 2, "tasks_per_node": 4}, needs(2, 4, 4)),
    ],
)
def test_machines_follow_from_the_ranks(
    world: int, options: dict[str, Any], expected: Allocation
) -> None:
    assert allocation(Slurm(**options), world) == expected


@pytest.mark.parametrize(
    ("world", "options", "key", "what", "fix"),
    [
        (
            12,
            {"gpus_per_node": 8},
            "launch.gpus_per_node=8",
            "12 ranks do not fill machines of 8 GPUs: 12 = 1 x 8 + 4.",
            "launch.gpus_per_node=6, which takes 2 machines; or parallel degrees whose product is a multiple of 8",
        ),
        (
            6,
            {"nodes": 2, "gpus_per_node": 4},
            "launch.nodes=2",
            "the mesh has 6 ranks, and the job 2 machines x 4 GPUs = 8.",
            "parallel degrees whose product is 8",
        ),
        (
            4,
            {"nodes": 2, "gpus_per_node": 4},
            "launch.nodes=2",
            "the mesh has 4 ranks, and the job 2 machines x 4 GPUs = 8.",
            "launch.nodes=1, or leave it out; or parallel degrees whose product is 8",
        ),
        (
            6,
            {"tasks_per_node": 4, "gpus_per_node": 0},
            "launch.tasks_per_node=4",
            "6 ranks do not fill machines of 4 ranks: 6 = 1 x 4 + 2.",
            "launch.tasks_per_node=3, which takes 2 machines; or parallel degrees whose product is a multiple of 4",
        ),
        (
            3,
            {"nodes": 2},
            "launch.nodes=2",
            "the mesh has 3 ranks, and the job 2 machines x 1 GPU = 2.",
            "launch.nodes=3, or leave it out; or parallel degrees whose product is 2",
        ),
        (
            4,
            {"tasks_per_node": 4, "gpus_per_node": 2},
            "launch.tasks_per_node=4",
            "4 ranks on a machine of 2 GPUs; each rank has one GPU.",
            "leave it out, or launch.gpus_per_node=4",
        ),
    ],
)
def test_ranks_that_do_not_fill_the_machines_are_refused(
    world: int, options: dict[str, Any], key: str, what: str, fix: str
) -> None:
    found = allocation(Slurm(**options), world)
    assert isinstance(found, Problem)
    assert (found.key, found.what, found.fix) == (key, what, fix)


def test_a_signal_before_the_job_begins_is_refused() -> None:
    (fault,) = faults(Slurm(time=2))
    assert fault.render().splitlines() == [
        "  launch.signal_before=120",
        "  a job of launch.time=2 minutes has 120 s, so the signal would come before it begins.",
        "  -> launch.signal_before=60 or launch.time=3",
    ]
    assert not list(faults(Slurm(time=2, signal_before=119)))


@pytest.mark.parametrize("key", ["array", "ntasks-per-node", "--ntasks_per_node", "signal", "time"])
def test_keys_of_sbatch_that_have_another_source_are_refused(key: str) -> None:
    (fault,) = faults(Slurm(sbatch={key: "1"}))
    assert (fault.key, fault.what) == (
        f"launch.sbatch.{key}=1",
        "forge sets this key of sbatch itself.",
    )
    assert fault.fix.startswith("leave it out: it is ")


def test_one_array_a_shape_in_the_order_they_come() -> None:
    groups = grouped([1, 4, 1, 16, 4], Slurm(gpus_per_node=8))
    assert [(group.needs, group.members) for group in groups] == [
        (needs(1, 1, 1), (0, 2)),
        (needs(1, 4, 4), (1, 4)),
        (needs(2, 8, 8), (3,)),
    ]


def test_an_array_is_no_larger_than_the_cluster_takes(
    tmp_path: Path, command: Callable[..., None]
) -> None:
    assert [group.members for group in grouped([1, 4, 1, 1, 1, 1], Slurm(), most=2)] == [
        (0, 2),
        (3, 4),
        (5,),
        (1,),
    ]
    points = [(tmp_path / str(place), 1) for place in range(7)]

    def arrays() -> list[str]:
        made = slurm.scripts(points, Slurm(), name="night", folder=tmp_path / "slurm")
        return [
            line
            for script in made
            for line in script.splitlines()
            if line.startswith("#SBATCH --array")
        ]

    assert arrays() == ["#SBATCH --array=0-6%7"]  # there is no Slurm to ask
    command("scontrol", "printf 'MaxArrayTasks           = 9\\nMaxArraySize            = 3\\n'")
    assert arrays() == ["#SBATCH --array=0-2%3"] * 2  # and the last alone is a job


def test_all_shapes_that_do_not_fit_are_refused_together_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    section = Slurm(gpus_per_node=4, time=1)
    points = [(tmp_path / str(place), world) for place, world in enumerate((1, 5, 6, 5))]
    with pytest.raises(ConfigError) as refused:
        slurm.submit(points, section, name="bad", folder=tmp_path / "slurm")
    assert [problem.key for problem in refused.value.problems] == [
        "launch.signal_before=120",
        *["launch.gpus_per_node=4"] * 2,
    ]
    assert not list(tmp_path.iterdir())


def test_the_script_of_an_array(tmp_path: Path) -> None:
    section = Slurm(
        partition="gpu",
        account="lab",
        qos="high",
        constraint="h200",
        time=240,
        gpus_per_node=8,
        cpus_per_task=12,
        mem="0",
        exclusive=True,
        setup=["module load cuda", 'echo "it\'s here"'],
        sbatch={"mail-type": "FAIL", "hold": "", "comment": "two words"},
        srun_args=["--cpu-bind=none"],
        array_parallelism=2,
        max_requeues=3,
    )
    points = [(tmp_path / str(place), 16) for place in range(3)]
    (script,) = slurm.scripts(points, section, name="lr-sweep", folder=tmp_path / "my jobs")
    folder = tmp_path / "my jobs"
    assert script.splitlines() == [
        "#!/bin/bash",
        "",
        "# Parameters",
        "#SBATCH --account=lab",
        "#SBATCH --array=0-2%2",
        "#SBATCH --comment='two words'",
        "#SBATCH --constraint=h200",
        "#SBATCH --cpus-per-task=12",
        "#SBATCH --exclusive",
        "#SBATCH --gpus-per-node=8",
        "#SBATCH --hold",
        "#SBATCH --job-name=lr-sweep",
        "#SBATCH --mail-type=FAIL",
        "#SBATCH --mem=0",
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=8",
        "#SBATCH --open-mode=append",
        f"#SBATCH --output='{folder}/%A_%a_0_log.out'",
        "#SBATCH --partition=gpu",
        "#SBATCH --qos=high",
        "#SBATCH --requeue",
        "#SBATCH --signal=USR2@120",
        "#SBATCH --time=240",
        "",
        "# setup",
        f"export PYTHONPATH={shlex.quote(search_path())}",
        f"done_or_end() {{ {ENDS}; }}",
        "module load cuda",
        "done_or_end 'module load cuda'",
        'echo "it\'s here"',
        """done_or_end 'echo "it'"'"'s here"'""",
        "",
        "# command",
        "export SUBMITIT_EXECUTOR=slurm",
        f"srun --unbuffered --output '{folder}/%A_%a_%t_log.out' --kill-on-bad-exit=1 --export=ALL --cpus-per-task=12 --cpu-bind=none "
        f"{shlex.quote(sys.executable)} -u -m submitit.core._submit '{folder}'",
    ]
    assert not folder.exists()


def test_a_single_run_is_no_array_and_asks_for_nothing_that_was_not_said(tmp_path: Path) -> None:
    (script,) = slurm.scripts(
        [(tmp_path / "run", 1)], Slurm(gpus_per_node=0, max_requeues=0), name="run", folder=tmp_path
    )
    assert [
        line.removeprefix("#SBATCH --")
        for line in script.splitlines()
        if line.startswith("#SBATCH")
    ] == [
        "job-name=run",
        "no-requeue",
        "nodes=1",
        "ntasks-per-node=1",
        "open-mode=append",
        f"output={tmp_path}/%j_0_log.out",
        "signal=USR2@120",
        "time=60",
    ]


def test_a_machine_without_slurm_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError) as refused:
        slurm.check([(tmp_path / "run", 1)], Slurm(), name="run", folder=tmp_path)
    assert str(refused.value).splitlines() == [
        "1 problem; nothing was started or written.",
        "  1. launch=slurm",
        "     this machine has no Slurm: there is no sbatch on PATH.",
        "     -> type it on a machine of the cluster that has sbatch and srun; launch.dry_run=true prints the scripts anywhere",
    ]


def test_what_sbatch_refuses_is_told_before_anything_is_written(
    tmp_path: Path, command: Callable[..., None]
) -> None:
    command("srun", "")
    command(
        "sbatch",
        'echo "sbatch: error: invalid partition specified: gpuu" >&2; echo "allocation failure" >&2; exit 1',
    )
    with pytest.raises(ConfigError) as refused:
        slurm.check(
            [(tmp_path / "run", 8)], Slurm(gpus_per_node=4), name="run", folder=tmp_path / "slurm"
        )
    assert str(refused.value).splitlines()[1:] == [
        "  1. launch=slurm",
        "     sbatch refuses a job with nodes=2 ntasks-per-node=4 gpus-per-node=4: invalid partition specified: gpuu / allocation failure",
        "     -> launch.dry_run=true prints what it is given",
    ]
    assert not (tmp_path / "slurm").exists()


def test_what_sbatch_refuses_later_is_told_in_one_piece(
    tmp_path: Path, command: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    command("srun", "")
    command("sbatch", 'echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2; exit 1')
    with pytest.raises(slurm.NotSubmitted) as refused:
        slurm.submit([(tmp_path / "run", 1)], Slurm(), name="night", folder=tmp_path / "slurm")
    assert str(refused.value).splitlines() == [
        "  launch=slurm",
        "  sbatch does not take night: QOSMaxSubmitJobPerUserLimit",
        "  -> the same command, once that is mended, submits what is missing",
    ]
    assert capfd.readouterr() == ("", "")


def test_what_another_job_has_set_does_not_reach_the_new_one(
    tmp_path: Path, command: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell in an allocation, or a rank, may submit: only what says which Slurm to ask is handed
    on.
    """
    others = {
        "SLURM_NTASKS": "9",
        "SLURM_JOB_ID": "7",
        "RANK": "3",
        "MASTER_ADDR": "elsewhere",
        "SUBMITIT_EXECUTOR": "slurm",
    }
    for name, value in {
        **others,
        "SLURM_CONF": "/nowhere",
        "SBATCH_ACCOUNT": "lab",
        "MINE": "1",
    }.items():
        monkeypatch.setenv(name, value)
    command("srun", "")
    command("sbatch", f"env > {tmp_path}/environment; echo Submitted batch job 12")
    (tmp_path / "run").mkdir()
    assert slurm.submit(
        [(tmp_path / "run", 1)], Slurm(), name="run", folder=tmp_path / "slurm"
    ) == ["12"]
    seen = dict(
        line.split("=", 1)
        for line in (tmp_path / "environment").read_text().splitlines()
        if "=" in line
    )
    assert {name: seen.get(name) for name in ("SLURM_CONF", "SBATCH_ACCOUNT", "MINE")} == {
        "SLURM_CONF": "/nowhere",
        "SBATCH_ACCOUNT": "lab",
        "MINE": "1",
    }
    assert not set(others) & set(seen)
    assert slurm.job_of(tmp_path / "run") == "12"
    assert slurm.log_file(tmp_path / "run", 1) == tmp_path / "slurm" / "12_1_log.out"


def test_variables_of_sbatch_are_defaults_and_overrule_no_option(
    tmp_path: Path, command: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """sbatch itself takes SBATCH_PARTITION before the script's --partition."""
    always = {
        "SBATCH_TIMELIMIT": "5",
        "SBATCH_ARRAY_INX": "0-9",
        "SBATCH_OUTPUT": "x",
        "SBATCH_GPUS": "4",
        "SBATCH_WAIT": "1",
    }
    named = {
        "SBATCH_PARTITION": "long",
        "SBATCH_MEM_PER_CPU": "1G",
        "SBATCH_EXCLUSIVE": "user",
        "SBATCH_RESERVATION": "theirs",
    }
    others = {"SBATCH_ACCOUNT": "lab", "SBATCH_EXPORT": "NONE"}
    for name, value in {**always, **named, **others}.items():
        monkeypatch.setenv(name, value)
    command("sbatch", f"env | grep ^SBATCH_ | sort > {tmp_path}/seen; echo Submitted batch job 12")
    command("srun", "")

    def seen(section: Slurm) -> dict[str, str]:
        slurm.check([(tmp_path / "run", 1)], section, name="run", folder=tmp_path)
        return dict(line.split("=") for line in (tmp_path / "seen").read_text().splitlines())

    assert seen(Slurm()) == {**named, **others}
    assert (
        seen(Slurm(partition="gpu", mem="8G", exclusive=True, sbatch={"reservation": "mine"}))
        == others
    )
    assert os.environ["SBATCH_PARTITION"] == "long"


def test_a_run_that_is_in_the_queue_is_not_submitted_twice(
    tmp_path: Path, command: Callable[..., None]
) -> None:
    command("srun", "")
    command("sbatch", "echo Submitted batch job 12")
    command("squeue", "echo '12|PENDING'")
    run = tmp_path / "run"
    run.mkdir()
    slurm.submit([(run, 1)], Slurm(), name="run", folder=tmp_path / "slurm")
    with pytest.raises(ConfigError) as refused:
        slurm.submit([(run, 1)], Slurm(), name="run", folder=tmp_path / "slurm")
    assert str(refused.value).splitlines()[1:] == [
        f"  1. run.dir={run}",
        "     the run is in Slurm's queue already: job 12 is PENDING.",
        "     -> wait for it, or end it: scancel 12",
    ]
    command("squeue", "echo '12|TIMEOUT'")
    assert slurm.submit([(run, 1)], Slurm(), name="run", folder=tmp_path / "slurm") == ["12"]


def test_the_page_shows_the_script_as_it_is() -> None:
    """But for the places of the tree and of Python, which are those of whoever types the command."""
    page = (Path(__file__).parents[2] / "docs" / "slurm.md").read_text(encoding="utf-8")
    command, _, rest = (
        page.partition("## The script")[2]
        .partition("python -m forge.train ")[2]
        .partition("\n\n```bash\n")
    )
    shown = rest.partition("\n```\n")[0]
    composition, resolution = cli.resolved(shlex.split(command.replace("\\\n", " ")))
    assert not composition.problems
    printed = jobs.check_run(resolution)
    assert printed is not None
    printed = re.sub(r"(?m)^export PYTHONPATH=.*$", "export PYTHONPATH=/home/you/forge", printed)
    printed = printed.replace(
        shlex.quote(sys.executable), "/home/you/forge/.venv/bin/python"
    ).replace(os.getcwd(), "/home/you/forge")
    assert printed.strip() == shown


def test_a_type_of_gpus(tmp_path: Path) -> None:
    (script,) = slurm.scripts(
        [(tmp_path / "run", 4)], Slurm(gpu_type="h200"), name="run", folder=tmp_path
    )
    assert "#SBATCH --gpus-per-node=h200:4\n" in script


def test_who_submits_imports_no_torch() -> None:
    code = "import sys; from forge.launch import requeue, slurm, slurm_task; import submitit; print('torch' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "False\n"
    )
