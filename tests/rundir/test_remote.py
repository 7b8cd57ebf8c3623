"""Runs in remote stores, here a server of S3 and a folder: what is copied, when it counts as
complete, and what a store's faults say.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.s3_server import s3  # noqa: F401  (a fixture)

from forge.rundir import checkpoints
from forge.rundir.checkpoints import META, NoCheckpoint, Saved
from forge.rundir.remote import store as store_module
from forge.rundir.remote.brought import run_to_resume
from forge.rundir.remote.copies import Copies, Retention
from forge.rundir.remote.local_copy import local_copy_of, local_folder
from forge.rundir.remote.runs import fetch_newest, fetch_run, listing_of, remote_name
from forge.rundir.remote.store import RemoteError, Store

ALL = Retention(last=0, best=0, metric="loss")


@pytest.fixture(params=["s3", "file"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An address that can be written: of each kind of store."""
    if request.param == "s3":
        return f"{request.getfixturevalue('s3')}/runs"
    return f"file://{tmp_path}/remote/runs"


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return f"file://{tmp_path}/remote/runs"


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(store_module, "PAUSE", 0.01)
    monkeypatch.setattr("forge.rundir.remote.copies.POLL", 0.05)
    monkeypatch.setenv("FORGE_CACHE", str(tmp_path / "cache"))


def save(run: Path, step: int, *, ranks: int = 1, run_id: str = "me", loss: float = 1.0) -> Path:
    """A checkpoint as a run saves it, with some bytes for tensors."""
    path = run / "checkpoints" / f"step_{step}"
    (path / "weights").mkdir(parents=True)
    (path / "config.yaml").write_text("a: 1\n")
    tensors = {}
    for rank in range(ranks):
        content = os.urandom(3000 + rank)
        (path / "weights" / f"rank_{rank}.bin").write_bytes(content)
        chunk = {"file": f"rank_{rank}.bin", "start": 0, "crc32": [zlib.crc32(content)]}
        tensors[f"w{rank}"] = {"chunks": [chunk]}
    (path / "weights" / "tensors.json").write_text(json.dumps({"tensors": tensors}))
    meta: dict[str, Any] = {
        "format": 2,
        "step": step,
        "run_id": run_id,
        "time": os.urandom(4).hex(),
    }
    meta |= {"time": os.urandom(4).hex(), "metrics": {"loss": loss}}
    meta |= {"best_by": "loss", "higher_is_better": False}
    meta |= {"files": checkpoints.file_sizes(path), "sha256": checkpoints.small_hashes(path)}
    (path / META).write_text(json.dumps(checkpoints.sealed(meta)))
    assert Saved(path).fault("me") is None or run_id != "me"
    return path


def make_run(tmp_path: Path, run_id: str = "me") -> Path:
    run = tmp_path / "mine"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.yaml").write_text("checkpoint: {dir: checkpoints}\n")
    (run / "provenance.json").write_text(json.dumps({"run_id": run_id}))
    (run / "run.lock").write_text("not copied")
    return run


def copies(run: Path, place: str, retention: Retention = ALL, **ranks: int) -> Copies:
    store = Store(f"{place}/{remote_name(run)}")
    return Copies(run, run / "checkpoints", store, "me", retention, **ranks)


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_run_comes_back_as_it_was(tmp_path: Path, place: str) -> None:
    run = make_run(tmp_path)
    save(run, 2)
    work = copies(run, place)
    work.start(2)
    newest = save(run, 4, loss=0.5)
    (run / "metrics.jsonl").write_text('{"step": 4}\n')
    work.finish()
    fetch_run(Store(f"{place}/mine"), back := tmp_path / "back")
    assert content(back / "checkpoints") == {
        f"step_4/{name}": data for name, data in content(newest).items()
    }
    small = {k: v for k, v in content(run).items() if k[0] != "c" and k != "run.lock"}
    assert {k: v for k, v in content(back).items() if k[0] != "c"} == small
    assert not list(run.rglob(".copied"))
    # An address that is read by the verbs: the newest, one step, and the folder of steps.
    for address in (f"{place}/mine", f"{place}/mine/checkpoints", f"{place}/mine/best"):
        found, _ = checkpoints.find_checkpoint(local_copy_of(address))
        assert content(found.path) == content(newest), address
    assert content(local_copy_of(f"{place}/mine/checkpoints/step_4")) == content(newest)
    one = local_copy_of(f"{place}/mine/metrics.jsonl")
    assert one.read_text() == '{"step": 4}\n'


def test_metrics_of_an_evaluation_follow(tmp_path: Path, folder: str) -> None:
    run = make_run(tmp_path)
    path = save(run, 2)
    assert copies(run, folder).copy_now() == 2
    meta = json.loads((path / META).read_text()) | {"metrics": {"loss": 0.5}}
    (path / META).write_text(json.dumps(checkpoints.sealed(meta)))
    uploads = copies(run, folder)
    names: list[str] = []
    record(uploads, names.append)
    uploads.copy_now()
    assert not [name for name in names if "rank_0.bin" in name], "its tensors are there"
    with listing_of(Store(f"{folder}/mine")) as listing:
        assert listing.saved[0].meta["metrics"] == {"loss": 0.5}


def record(work: Copies, call: Callable[[str], None]) -> None:
    """Call with the name of each file before it is uploaded."""
    upload = work.store.upload

    def spied(files: dict[str, Path]) -> None:
        for name in files:
            call(name)
            upload({name: files[name]})

    work.store.upload = spied  # type: ignore[method-assign]


def test_an_upload_that_dies_is_no_checkpoint(
    tmp_path: Path, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = make_run(tmp_path)
    first = save(run, 2)
    copies(run, place).copy_now()
    save(run, 4)

    def die(name: str) -> None:
        if "step_4/weights/tensors" in name:
            raise KeyboardInterrupt  # as a kill: nothing is cleaned up

    work = copies(run, place)
    record(work, die)
    with pytest.raises(KeyboardInterrupt):
        work.copy_now()
    store = Store(f"{place}/mine")
    with listing_of(store) as listing:
        assert {saved.step: listing.fault(saved) for saved in listing.saved} == {
            2: "",
            4: "it is torn: it has no meta.json, which is written last",
        }
        assert fetch_newest(listing, tmp_path / "back") == Saved(tmp_path / "back" / "step_2")
    assert content(tmp_path / "back" / "step_2") == content(first)
    assert "step_4 is skipped: it is torn" in caplog.text
    with listing_of(store) as listing:
        store.remove(listing.names(listing.saved[0]))
    with listing_of(store) as listing:  # where nothing was ever complete, a run begins again
        assert fetch_newest(listing, tmp_path / "none") is None
    again = copies(run, place)  # the next start of the run copies it again
    again.start(4)
    again.finish()
    with listing_of(store) as listing:
        assert [saved.step for saved in listing.usable()] == [4]


def test_damage_in_the_store_is_seen(tmp_path: Path, folder: str) -> None:
    """Fewer bytes, other bytes, and a meta.json that was edited."""
    run = make_run(tmp_path)
    for step in (2, 4, 6, 8):
        save(run, step)
        copies(run, folder).copy_now()
    store, of = Store(f"{folder}/mine"), "checkpoints/step_{}/{}"
    tensors = store.read(of.format(6, "weights/rank_0.bin")) or b""
    store.write(of.format(8, "weights/rank_0.bin"), tensors[:-1])
    store.write(of.format(6, "weights/rank_0.bin"), tensors[:-1] + bytes([tensors[-1] ^ 1]))
    store.write(of.format(4, META), (store.read(of.format(4, META)) or b"").replace(b"4", b"5", 1))
    with listing_of(store) as listing:
        faults = {saved.step: listing.fault(saved) for saved in listing.saved}
        assert faults[8] == "it is torn: weights/rank_0.bin has 2999 bytes of 3000"
        assert faults[4] == "its meta.json is damaged"
        fault = listing.fetch(Saved(listing.folder / "step_6"), tmp_path / "back")
        assert "the bytes of 'w0' are not those that were saved" in fault
        assert store.address in fault
        assert fetch_newest(listing, tmp_path / "back") == Saved(tmp_path / "back" / "step_2")
        store.write(of.format(2, "weights/rank_0.bin"), b"")
    with (
        listing_of(store) as listing,
        pytest.raises(NoCheckpoint, match=r"step_8: it is torn: .*; step_6"),
    ):
        fetch_newest(listing, tmp_path / "other")


def test_ranks_copy_their_own_parts_and_meta_comes_last(tmp_path: Path, place: str) -> None:
    run = make_run(tmp_path)
    save(run, 2, ranks=3)
    names: dict[int, list[str]] = {0: [], 1: []}
    works = [copies(run, place, rank=rank, size=2) for rank in range(2)]
    slow = threading.Event()
    for rank, work in enumerate(works):

        def note(name: str, rank: int = rank) -> None:
            if rank == 1:
                slow.wait(0.3)  # rank 0 waits for it
            elif name.endswith(META):
                assert "checkpoints/step_2/weights/rank_1.bin" in names[1]
            names[rank].append(name)

        record(work, note)
        work.start(2)
    threads = [threading.Thread(target=work.finish) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert names[1] == ["checkpoints/step_2/weights/rank_1.bin"]
    assert "checkpoints/step_2/weights/rank_2.bin" in names[0], "saved by more ranks than continue"
    assert [name for name in names[0] if "step_2" in name][-1] == f"checkpoints/step_2/{META}"
    with listing_of(Store(f"{place}/mine")) as listing:
        assert [saved.step for saved in listing.usable()] == [2]


def test_a_part_that_fails_leaves_no_checkpoint(tmp_path: Path) -> None:
    run, place = make_run(tmp_path), f"file://{tmp_path}/remote"
    save(run, 2, ranks=2)
    works = [copies(run, place, rank=rank, size=2) for rank in range(2)]

    def fail(name: str) -> None:
        raise RemoteError(place, "access is denied", "Check the credentials")

    record(works[1], fail)
    for work in works:
        work.start(2)
    other = threading.Thread(target=works[1].finish)
    other.start()
    with pytest.raises(RemoteError, match=r"rank 1: .*access is denied"):
        works[0].finish()
    other.join(20)
    with listing_of(Store(f"{place}/mine")) as listing:
        assert not listing.usable()


def test_what_is_kept_and_what_is_made_again(tmp_path: Path, folder: str) -> None:
    """The retention is that of the run, also where it removes a checkpoint that is being copied."""
    run, retention = make_run(tmp_path), Retention(last=2, best=1, metric="loss")
    for step, loss in ((2, 3.0), (4, 1.0), (6, 2.0), (8, 2.5), (10, 2.2)):
        path = save(run, step, loss=loss)
        work = copies(run, folder, retention)
        record(work, lambda name, path=path: shutil.rmtree(path, ignore_errors=True))
        work.copy_now()
    store = Store(f"{folder}/mine")
    with listing_of(store) as listing:
        assert [saved.step for saved in listing.usable()] == [4, 8, 10]
        assert fetch_newest(listing, run / "checkpoints") is not None
    work = copies(run, folder, retention)
    work.start(8)  # the run has gone on from step 8: 10 is made again
    work.stop()
    with listing_of(store) as listing:
        assert [saved.step for saved in listing.saved] == [4, 8]


def test_another_run_of_this_name(tmp_path: Path) -> None:
    run, place = make_run(tmp_path), f"file://{tmp_path}/remote"
    save(run, 2)
    copies(run, place).copy_now()
    (run / "provenance.json").write_text(json.dumps({"run_id": "other"}))
    other = Copies(run, run / "checkpoints", Store(f"{place}/mine"), "other", ALL)
    with pytest.raises(RemoteError, match=r"another run of this name is there. Give another run"):
        other.start(2)
    points = tmp_path / "rates" / "points" / "003_lr"
    assert remote_name(points) == "rates/points/003_lr"


def test_shards_are_copied_once_and_again_when_they_change(tmp_path: Path, place: str) -> None:
    store = Store(f"{place}/tokens")
    store.write("train/00000.bin", b"old!")
    store.write("train/index.json", b"{}")
    folder = local_folder(store.address, None)
    assert content(folder) == {"train/00000.bin": b"old!", "train/index.json": b"{}"}
    before = (folder / "train/index.json").stat().st_mtime_ns
    store.write("train/00000.bin", b"new!")
    assert content(local_folder(store.address, None))["train/00000.bin"] == b"new!"
    assert (folder / "train/index.json").stat().st_mtime_ns == before, "unchanged: not copied"
    store.write("a.npy", b"1")
    only = local_folder(store.address, str(tmp_path / "elsewhere"), "*.npy")
    assert sorted(content(only)) == ["a.npy", "train/index.json"]


def test_messages_of_a_store(s3: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # noqa: F811
    with pytest.raises(RemoteError) as absent:
        Store("s3://nowhere/runs").probe()
    assert str(absent.value) == (
        "s3://nowhere/runs: there is no nowhere in the store. Correct its name, or make it first"
    )
    with pytest.raises(RemoteError, match="there is nothing at this address"):
        local_copy_of(f"{s3}/runs/mine")
    with pytest.raises(ValueError, match=r"there is no run: it has no config.yaml"):
        run_to_resume(f"{s3}/runs/mine")
    Store(s3).probe()
    assert not Store(s3).files(), "the file of the probe is removed"
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(RemoteError) as unknown:
        Store(f"{s3}/runs").probe()
    assert "there are no credentials for it (Unable to locate credentials" in str(unknown.value)
    assert "Give AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in str(unknown.value)
    with pytest.raises(RemoteError, match=r"it needs the library adlfs, which is absent. Install"):
        Store("az://bucket/runs")
    closed = tmp_path / "file"
    closed.write_text("")
    with pytest.raises(RemoteError, match="Give a folder that you may write in"):
        Store(f"file://{closed}/runs").probe()


def test_names_that_lead_out_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RemoteError, match="leads out of its folder"):
        Store(f"file://{tmp_path}").download(["../../etc/x"], tmp_path / "here")
