"""What ranks agree on, how they meet, and how those that are not there are named."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as futures_wait
from contextlib import nullcontext, suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from helpers.ranks import on_ranks

from forge.config.parallel import Parallel
from forge.config.precision import Precision
from forge.config.replicas.diloco import DiLoCo
from forge.config.root import Config
from forge.launch.local.processes import free_port
from forge.parallel.join import _backend, join_ranks
from forge.parallel.ranks import Ranks
from forge.parallel.rendezvous import Command, Rendezvous


def laid_out(**layout: Any) -> Config:
    """All that joining reads of a config."""
    fp32 = Precision(mixed_precision="fp32")
    sections = {"parallel": Parallel(**layout), "precision": fp32, "diloco": DiLoCo()}
    return cast(Config, SimpleNamespace(**sections))


def environment(rank: int, world: int, port: int) -> dict[str, str]:
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    return dict(zip(names, (str(rank), str(world), "127.0.0.1", str(port)), strict=True))


def meet(rank: int, world: int, port: int) -> None:
    """The environment of a rank, without the group that the test has made."""
    dist.destroy_process_group()
    os.environ.update(environment(rank, world, port))


def test_what_ranks_agree_on() -> None:
    port = free_port()

    def work(rank: int) -> None:
        meet(rank, 2, port)
        ranks = join_ranks(laid_out(dp_shard=2, nccl_timeout_sec=60), torch.device("cpu"))
        assert (ranks.rank, ranks.size, ranks.main, ranks.batch) == (rank, 2, rank == 0, (rank, 2))
        assert ranks.any(rank == 1)
        assert not ranks.any(False)
        assert ranks.largest(10 * rank, -rank) == [10, 0]
        assert ranks.of_all({"of": rank}) == [{"of": 0}, {"of": 1}]
        assert ranks.from_main({"of": rank}) == {"of": 0}
        assert ranks.copy_from_main(torch.tensor([7.0, rank])).tolist() == [7.0, 0.0]
        assert ranks.total(torch.tensor([1.0, rank])).tolist() == [2.0, 1.0]
        for step in (1, 2):
            ranks.check_alive(step)
        ranks.close()
        os._exit(0)  # the group of on_ranks is gone

    on_ranks(2, work)


def test_collectives_of_devices_have_less_time_after_the_first_step() -> None:
    """Those between hosts keep their time; gloo stands in for NCCL."""
    port = free_port()

    def work(rank: int) -> None:
        meet(rank, 2, port)
        layout = laid_out(dp_shard=2, nccl_timeout_sec=60, nccl_train_timeout_sec=1)
        ranks = join_ranks(layout, torch.device("cpu"))
        assert ranks.rendezvous is not None
        assert ranks.mesh is not None
        ranks.after_first_step()
        groups = {id(group): group for group in (dist.group.WORLD, *ranks.mesh.groups())}
        if rank == 0:
            for group in [g for g in groups.values() if dist.get_world_size(g) > 1]:
                work_under_way = dist.all_reduce(torch.ones(1), group=group, async_op=True)
                with pytest.raises(RuntimeError, match="Timed out waiting 1000ms"):
                    _within(10, work_under_way.wait)  # type: ignore[union-attr]
        else:
            time.sleep(3)  # the other waits for this rank, longer than devices may
        assert ranks.of_all(rank) == [0, 1]
        ranks.rendezvous.store.set(f"done {rank}", "")
        ranks.rendezvous.store.wait(["done 0", "done 1"], timedelta(seconds=60))
        time.sleep(0 if rank else 1)
        os._exit(0)  # what is left of the groups is of no use

    on_ranks(2, work)


@pytest.mark.nightly
def test_every_group_has_the_timeout_of_the_config() -> None:
    """torch gives the groups of a mesh its default of 30 minutes."""
    port = free_port()

    def work(rank: int) -> None:
        meet(rank, 4, port)
        ranks = join_ranks(
            laid_out(dp_replicate=2, dp_shard=2, nccl_timeout_sec=1), torch.device("cpu")
        )
        assert ranks.mesh is not None
        assert ranks.rendezvous is not None
        groups = {id(group): group for group in (ranks.host, ranks.saver, *ranks.mesh.groups())}
        if rank == 0:
            shared = [group for group in groups.values() if dist.get_world_size(group) > 1]
            assert {dist.get_world_size(group) for group in shared} == {2, 4}
            for group in shared:
                work_under_way = dist.all_reduce(torch.ones(1), group=group, async_op=True)
                with pytest.raises(RuntimeError, match="Timed out waiting 1000ms"):
                    _within(10, work_under_way.wait)  # type: ignore[union-attr]
            ranks.rendezvous.store.set("tried", "")
        ranks.rendezvous.store.wait(["tried"], timedelta(seconds=60))
        time.sleep(0 if rank else 1)
        os._exit(0)  # what is left of the groups is of no use

    on_ranks(4, work)


def _within(seconds: float, wait: Callable[[], object]) -> object:
    """What it gives or raises; fails when it takes longer."""
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(wait)
        if not futures_wait([future], seconds).done:
            print("a collective took longer than its timeout", flush=True)
            os._exit(1)
        return future.result()


def test_ranks_that_are_not_there_are_named() -> None:
    port = free_port()

    def work(rank: int) -> None:
        os.environ.update(environment(rank, 3, port))
        rendezvous = Rendezvous()
        assert rendezvous.missing(1, timedelta(seconds=20)) == []
        if rank == 1:
            assert rendezvous.missing(2, timedelta(seconds=1)) == [0, 2]
            ranks = Ranks(rank=1, size=3, rendezvous=rendezvous, timeout=timedelta(seconds=1))
            with pytest.raises(ConnectionError) as caught:
                ranks.check_alive(3)
            assert str(caught.value) == (
                "no sign of life from ranks 0, 2 of 3 at step 3 within "
                "parallel.nccl_timeout_sec=1; see logs/rank_0.log, logs/rank_2.log"
            )
        dist.barrier()  # until then the main rank has the store

    on_ranks(3, work)


@pytest.mark.nightly
def test_a_rank_may_prepare_data_for_longer_than_a_collective_may_take() -> None:
    """The main rank, or one of another host. No rank continues before all are through."""
    port = free_port()

    def work(rank: int) -> None:
        os.environ.update(environment(rank, 3, port))
        ranks = Ranks(rank=rank, size=3, rendezvous=Rendezvous(), timeout=timedelta(seconds=1))
        for slow in (0, 2):
            dist.barrier()
            began = time.monotonic()
            with ranks.main_first():
                time.sleep(2 if rank == slow else 0)
            assert time.monotonic() - began > 1.5
        dist.barrier()  # until then the main rank has the store

    on_ranks(3, work)


@pytest.mark.ci("0")
@pytest.mark.parametrize("failing", [0, 1])
def test_ranks_that_wait_for_one_that_fails_or_hangs_name_it(failing, monkeypatch) -> None:
    port = free_port()

    def work(rank: int) -> None:
        os.environ.update(environment(rank, 3, port))
        rendezvous = Rendezvous()

        def take_turn(act: Callable[[], object], patience: float) -> None:
            with rendezvous.main_first(timedelta(seconds=patience)):
                act() if rank == failing else None

        error = ZeroDivisionError if rank == failing else dist.DistError
        with pytest.raises(error, match=f"rank {failing} has failed|division"):
            take_turn(lambda: 1 / 0, 60)
        dist.barrier()
        if rank == failing:
            monkeypatch.setattr(rendezvous, "_signs_of_life", lambda *_: nullcontext())
            with suppress(ConnectionError):
                take_turn(lambda: time.sleep(3), 1)
        else:
            with pytest.raises(ConnectionError) as caught:
                take_turn(lambda: None, 1)
            assert str(caught.value) == (
                f"no sign of life from rank {failing} before the first step within "
                f"parallel.nccl_timeout_sec=1; see logs/rank_{failing}.log"
            )
        dist.barrier()  # until then the main rank has the store

    on_ranks(3, work)


def test_a_sum_of_ones_that_is_wrong_is_a_faulty_connection(monkeypatch) -> None:
    monkeypatch.setattr(Rendezvous, "missing", lambda *_: [])
    monkeypatch.setattr(dist, "all_reduce", lambda tensor: tensor.mul_(3))
    ranks = Ranks(size=4, rendezvous=Rendezvous(), timeout=timedelta(seconds=1))
    what = r"^an all-reduce of ones over 4 ranks is 3 at step 5: their connection is faulty$"
    with pytest.raises(ConnectionError, match=what):
        ranks.check_alive(5)


@pytest.mark.parametrize("code", [None, 2])
def test_all_ranks_receive_the_main_ranks_command(code) -> None:
    port = free_port()

    def work(rank: int) -> None:
        os.environ.update(environment(rank, 2, port))
        rendezvous, command = Rendezvous(), Command(run_dir="/a/run", trust=["mypkg."], code=code)
        if rank == 0:
            rendezvous.send(command)
            rendezvous.send(Command(code=1))  # the first counts
        else:
            time.sleep(0.5)
            assert rendezvous.receive() == command
        assert rendezvous.command == command
        dist.barrier()

    on_ranks(2, work)


def test_ranks_that_do_not_come_and_a_port_that_is_taken_are_named(monkeypatch) -> None:
    port = free_port()
    for name, value in environment(1, 2, port).items():
        monkeypatch.setenv(name, value)
    where = f"MASTER_ADDR=127.0.0.1 MASTER_PORT={port} within 1 s; see that all have started"
    with pytest.raises(ValueError, match=f"^rank 1 of 2 did not meet the others at {where}"):
        _ = Rendezvous(1).store
    taken = dist.TCPStore("127.0.0.1", 0, 1, True, wait_for_workers=False)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("MASTER_PORT", str(taken.port))
    what = f"^MASTER_PORT={taken.port}: another process has this port on 127.0.0.1; give a free one"
    with pytest.raises(ValueError, match=what):
        _ = Rendezvous(1).store


def test_a_backend_that_there_is_not_is_named() -> None:
    port = free_port()

    def work(rank: int) -> None:
        meet(rank, 2, port)
        what = r"^parallel.backend=cpu:smoke cannot be used for cpu: "
        with pytest.raises(ValueError, match=what):
            join_ranks(laid_out(dp_shard=2, backend="cpu:smoke"), torch.device("cpu"))
        os._exit(0)

    on_ranks(2, work)


@pytest.mark.parametrize(
    ("wanted", "device", "backend"),
    [
        ("cpu:gloo,cuda:nccl", "cpu", "gloo"),
        ("cpu:gloo,cuda:nccl", "cuda", "cpu:gloo,cuda:nccl"),
        ("cuda:nccl", "cuda", "nccl"),
        ("gloo", "cpu", "gloo"),
    ],
)
def test_the_backend_of_a_device(wanted, device, backend) -> None:
    assert _backend(wanted, device) == backend
