"""What Slurm is given: machines by the ranks, arrays by the machines, the script, its environment;
and what is refused before. No Slurm is needed: sbatch is a script too.
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
from forge.launch.slurm import queue
from forge.launch.slurm.script import ENDS, grouped, incomplete, setup
from forge.planning.allocation import Allocation, allocation, allocation_faults

Command = Callable[[str, str], None]
Capture = pytest.CaptureFixture[str]


def needs(nodes: int, tasks: int, gpus: int) -> Allocation:
    return Allocation(nodes=nodes, tasks_per_node=tasks, gpus_per_node=gpus)


@pytest.fixture(autouse=True)
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Put a command on PATH that does what a script says; no Slurm of this machine is there."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "cat", "env", "grep", "sort", "sleep"):
        (folder / name).symlink_to(f"/usr/bin/{name}")
    monkeypatch.setenv("PATH", str(folder))

    def make(name: str, script: str) -> None:
        path = folder / name
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    return make


@pytest.mark.parametrize(
    ("world", "options", "expected"),
    [
        (1, {}, needs(1, 1, 1)),
        (4, {"gpus_per_node": 0}, needs(1, 4, 0)),
        (16, {"gpus_per_node": 8}, needs(2, 8, 8)),
        (16, {"nodes": 4}, needs(4, 4, 4)),
        (2, {"gpus_per_node": 8}, needs(1, 2, 2)),  # no more of a machine than there are ranks
        (8, {"gpus_per_node": 0, "tasks_per_node": 2}, needs(4, 2, 0)),
        (12, {"gpus_per_node": 8}, "12 ranks do not fill machines of 8."),
        (4, {"nodes": 2, "gpus_per_node": 4}, "the mesh has 4 ranks, and the job 2 machines x 4"),
        (4, {"tasks_per_node": 4, "gpus_per_node": 2}, "4 ranks on a machine of 2 GPUs; each ran"),
    ],
)
def test_machines_follow_from_the_ranks(world: int, options: dict[str, Any], expected: Any) -> None:
    found = allocation(Slurm(**options), world)
    if isinstance(found, Problem):
        assert found.what.startswith(expected)
    else:
        assert found == expected


def test_one_array_a_shape_no_larger_than_the_cluster_takes(
    tmp_path: Path, command: Command
) -> None:
    groups = grouped([1, 4, 1, 16, 4], Slurm(gpus_per_node=8))
    assert [(group.needs, group.members) for group in groups] == [
        (needs(1, 1, 1), (0, 2)),
        (needs(1, 4, 4), (1, 4)),
        (needs(2, 8, 8), (3,)),
    ]
    points = [(tmp_path / str(place), 1) for place in range(7)]

    def arrays() -> list[str]:
        made = slurm.scripts(points, Slurm(), name="night", folder=tmp_path / "slurm")
        return re.findall(r"^#SBATCH --array=(.*)$", "\n".join(made), re.MULTILINE)

    assert arrays() == ["0-6%7"]  # there is no Slurm to ask
    command("scontrol", "printf 'MaxArrayTasks           = 9\\nMaxArraySize            = 3\\n'")
    assert arrays() == ["0-2%3"] * 2  # and the last alone is a job


def test_all_that_does_not_fit_is_refused_together_and_nothing_is_written(tmp_path: Path) -> None:
    section = Slurm(gpus_per_node=4, time=1, sbatch={"array": "1"})
    points = [(tmp_path / str(place), world) for place, world in enumerate((1, 5, 6, 5))]
    with pytest.raises(ConfigError) as refused:
        slurm.submit_jobs(points, section, name="bad", folder=tmp_path / "slurm")
    assert sorted(problem.key for problem in refused.value.problems) == [
        *["launch.gpus_per_node=4"] * 2,
        "launch.sbatch.array=1",
        "launch.signal_before=120",
    ]
    assert not (tmp_path / "slurm").exists()
    assert not list(allocation_faults(Slurm(time=2, signal_before=119)))


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
    folder = tmp_path / "my jobs"
    points = [(tmp_path / str(place), 16) for place in range(3)]
    (script,) = slurm.scripts(points, section, name="lr-sweep", folder=folder)
    parameters = f"""account=lab array=0-2%2 comment='two words' constraint=h200 cpus-per-task=12
        exclusive gpus-per-node=8 hold job-name=lr-sweep mail-type=FAIL mem=0 nodes=2
        ntasks-per-node=8 open-mode=append output='{folder}/%A_%a_0_log.out' partition=gpu qos=high
        requeue signal=USR2@120 time=240"""
    words = re.split(r"\s+(?=[a-z-]+(?:=|\s))", parameters)
    python = shlex.quote(sys.executable)
    assert script.splitlines() == [
        "#!/bin/bash",
        "",
        "# Parameters",
        *(f"#SBATCH --{word}" for word in words),
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
        f"srun --unbuffered --output '{folder}/%A_%a_%t_log.out' --kill-on-bad-exit=1 --export=ALL "
        f"--cpus-per-task=12 --cpu-bind=none {python} -u -m submitit.core._submit '{folder}'",
    ]
    assert not folder.exists()


def test_a_single_run_is_no_array_and_asks_for_nothing_that_was_not_said(tmp_path: Path) -> None:
    section = Slurm(gpus_per_node=0, max_requeues=0)
    (script,) = slurm.scripts([(tmp_path / "run", 1)], section, name="run", folder=tmp_path)
    assert re.findall(r"^#SBATCH --(.*)$", script, re.MULTILINE) == [
        *("job-name=run", "no-requeue", "nodes=1", "ntasks-per-node=1", "open-mode=append"),
        *(f"output={tmp_path}/%j_0_log.out", "signal=USR2@120", "time=60"),
    ]
    section = Slurm(gpu_type="h200")
    (script,) = slurm.scripts([(tmp_path / "run", 4)], section, name="run", folder=tmp_path)
    assert "#SBATCH --gpus-per-node=h200:4\n" in script


def test_what_slurm_refuses_is_said_before_anything_is_written(
    tmp_path: Path, command: Command, capfd: Capture
) -> None:
    run, folder = [(tmp_path / "run", 8)], tmp_path / "slurm"

    def said(action: Callable[..., Any]) -> list[str]:
        with pytest.raises(ConfigError) as refused:
            action(run, Slurm(gpus_per_node=4), name="night", folder=folder)
        return [line.strip() for line in str(refused.value).splitlines()]

    assert said(slurm.check_accepted)[2:] == [
        "this machine has no Slurm: there is no sbatch on PATH.",
        "-> a machine of the cluster with sbatch and srun, or launch.dry_run=true for the scripts; "
        "forge.check plan.device=h100 plans it from here",
    ]
    command("srun", "")
    command(
        "sbatch", "echo 'sbatch: error: invalid partition: gpuu\nallocation failure' >&2; exit 1"
    )
    machines = "nodes=2 ntasks-per-node=4 gpus-per-node=4"
    why = f"sbatch refuses a job with {machines}: invalid partition: gpuu / allocation failure"
    assert said(slurm.check_accepted)[2:] == [
        why,
        "-> launch.dry_run=true prints what it is given; forge.check plan.device=h100 plans it",
    ]
    assert said(slurm.scripts)[2:] == [why, "-> the script above is what it is given"]
    assert capfd.readouterr().out.count("#!/bin/bash\n") == 1
    assert not folder.exists()
    assert said(slurm.submit_jobs) == [
        "launch=slurm",
        "sbatch does not take night: invalid partition: gpuu / allocation failure",
        "-> the same command, once that is mended, submits what is missing",
    ]
    assert capfd.readouterr() == ("", "")


def test_what_is_shown_is_what_sbatch_would_take(
    tmp_path: Path, command: Command, capsys: Capture
) -> None:
    """On stderr: stdout has the script alone."""
    shown = "cat > {0}/given; echo $* > {0}/asked; echo 'sbatch: Job 7 to start at noon' >&2"
    command("sbatch", shown.format(tmp_path))
    run = [(tmp_path / "run", 4)]
    script, *elements = slurm.scripts(run, Slurm(), name="run", folder=tmp_path, labels=["seed=1"])
    assert capsys.readouterr() == ("", "sbatch --test-only says: Job 7 to start at noon\n")
    assert (tmp_path / "asked").read_text() == "--test-only\n"
    assert script == (tmp_path / "given").read_text()
    assert elements == ["# element 0: seed=1"]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'sbatch: fatal: no configuration source' >&2; exit 1", "fatal: no configuration so"),
        ("echo 'sbatch: error: Unable to contact it' >&2; exit 1", "Unable to contact it"),
        ("exec sleep 5", "sbatch gives no answer in 0.2 s"),
    ],
)
def test_a_script_is_shown_where_slurm_is_away(
    script: str, said: str, command: Command, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(queue, "SECONDS", 0.2 if "sleep" in script else 20)
    command("sbatch", script)
    assert len(slurm.scripts([(Path("run"), 1)], Slurm(), name="run", folder=Path("run"))) == 1
    assert capsys.readouterr().err.startswith(f"sbatch --test-only cannot ask Slurm: {said}")


def test_a_line_of_launch_setup_that_fails_ends_the_job_with_its_words(tmp_path: Path) -> None:
    fine = ["x=1 # || here", "f() {\n  false\n  true\n}", "f", "false || true"]
    fine += ["if [ $x = 1 ]; then\n  echo 'one'\nfi"]

    def shell(lines: list[str]) -> subprocess.CompletedProcess[str]:
        script = "\n".join([*setup(lines), "echo on"])
        return subprocess.run(["bash", "-c", script], capture_output=True, text=True, cwd=tmp_path)

    assert shell(fine).stdout == "one\non\n"
    missing = "source 'a venv/bin/activate'"
    done = shell([*fine, missing])
    assert (done.returncode, done.stdout) == (1, "one\n")
    assert done.stderr.splitlines()[-1] == f"launch.setup failed with exit code 1: {missing}"
    assert setup([]) == []


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("if true; then", "syntax error: unexpected end of file."),
        ("echo 'it", "unexpected EOF while looking for matching `''."),
        ("module load \\", "it ends with \\."),
    ],
)
def test_an_entry_of_launch_setup_is_a_complete_command(entry: str, said: str) -> None:
    (fault,) = incomplete(["module load cuda # of the site", entry, r"printf '\n'"])
    assert fault.key == f"launch.setup={entry}"
    assert fault.what == f"bash does not take it for a complete command: {said}"


def test_variables_of_jobs_and_of_sbatch_overrule_no_option(
    tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shell in an allocation, or a rank, may submit. sbatch itself takes SBATCH_PARTITION before
    the script's --partition.
    """
    names = "SLURM_NTASKS SLURM_JOB_ID RANK MASTER_ADDR SUBMITIT_EXECUTOR"
    never = [*names.split(), *(f"SBATCH_{n}" for n in ("TIMELIMIT", "ARRAY_INX", "OUTPUT", "WAIT"))]
    named = [f"SBATCH_{n}" for n in ("PARTITION", "MEM_PER_CPU", "EXCLUSIVE", "RESERVATION")]
    kept = {"SLURM_CONF", "MINE", "SBATCH_ACCOUNT", "SBATCH_EXPORT"}
    for name in (*never, *named, *kept):
        monkeypatch.setenv(name, "7")
    command("srun", "")
    command("sbatch", f"env > {tmp_path}/seen; echo Submitted batch job 12")
    (tmp_path / "run").mkdir()

    def seen(section: Slurm) -> set[str]:
        (tmp_path / "run" / slurm.JOB).unlink(missing_ok=True)
        run = [(tmp_path / "run", 1)]
        assert slurm.submit_jobs(run, section, name="run", folder=tmp_path / "slurm") == ["12"]
        lines = (tmp_path / "seen").read_text().splitlines()
        return {line.split("=")[0] for line in lines} & {*never, *named, *kept}

    assert seen(Slurm()) == {*named, *kept}
    own = Slurm(partition="gpu", mem="8G", exclusive=True, sbatch={"reservation": "mine"})
    assert seen(own) == kept
    assert os.environ["SBATCH_PARTITION"] == "7"
    assert slurm.slurm_job(tmp_path / "run") == "12"
    assert slurm.job_log(tmp_path / "run", 1) == tmp_path / "slurm" / "12_1_log.out"


def test_a_run_that_is_in_the_queue_is_not_submitted_twice(
    tmp_path: Path, command: Command
) -> None:
    command("srun", "")
    command("sbatch", "echo Submitted batch job 12")
    command("squeue", "echo '12|PENDING'")
    run = tmp_path / "run"
    run.mkdir()
    slurm.submit_jobs([(run, 1)], Slurm(), name="run", folder=tmp_path / "slurm")
    with pytest.raises(ConfigError, match=r"in Slurm's queue already: job 12 is PENDING\.\n.*l 12"):
        slurm.submit_jobs([(run, 1)], Slurm(), name="run", folder=tmp_path / "slurm")
    command("squeue", "echo '12|TIMEOUT'")
    assert slurm.submit_jobs([(run, 1)], Slurm(), name="run", folder=tmp_path / "slurm") == ["12"]


def test_the_page_shows_the_script_as_it_is() -> None:
    """But for the places of the tree and of Python."""
    page = (Path(__file__).parents[2] / "docs" / "slurm.md").read_text(encoding="utf-8")
    section = page.partition("## The script")[2].partition("python -m forge.train ")[2]
    typed, _, rest = section.partition("\n\n```bash\n")
    composition, resolution = cli.resolved(shlex.split(typed.replace("\\\n", " ")))
    assert not composition.problems
    printed = jobs.check_run(resolution)
    assert printed is not None
    printed = re.sub(r"(?m)^export PYTHONPATH=.*$", "export PYTHONPATH=/home/you/forge", printed)
    python = "/home/you/forge/.venv/bin/python"
    printed = printed.replace(shlex.quote(sys.executable), python)
    printed = printed.replace(os.getcwd(), "/home/you/forge")
    assert printed.strip() == rest.partition("\n```\n")[0]
