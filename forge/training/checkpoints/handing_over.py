"""Weights of a run in training for a server, as a Hugging Face folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from forge.config.rollouts.openai import OpenAIRollout
from forge.rollouts.client import ServerFailed
from forge.rundir import directory, versions
from forge.rundir.files import sync
from forge.training.checkpoints.checkpoint import Checkpointer
from forge.training.checkpoints.hf_folders import choose_family, export_folder
from forge.training.process import say
from forge.training.session import Session

WEIGHTS, CURRENT, PARTIAL = "weights", "current", ".partial"
KEPT = 2  # folders: a server may still read the one before
SHARD_BYTES = 4 << 30


class WeightFolders:
    """Writes the weights at a rollout to weights/NNNNNN-VERSION of the run directory, complete or
    not at all; weights/current leads to the newest. VERSION: of the config.

    checkpointer: of the run, whose present save ends first, and whose adapters have a base.
    """

    def __init__(self, session: Session) -> None:
        """Raises ValueError for a model outside all families."""
        section = session.config.decoder
        if section is None:
            target = session.config.model._target_
            raise ValueError(f"rollout=openai: model._target_={target} is no decoder of forge")
        choose_family(section, None)
        self.session = session
        self.checkpointer: Checkpointer | None = None
        self.folder = session.run_dir / WEIGHTS
        self.version = versions.number_in_force(session.run_dir)

    @classmethod
    def wanted(cls, session: Session) -> bool:
        rollout = session.config.rollout
        return isinstance(rollout, OpenAIRollout) and rollout.weights_interval > 0

    def of(self, checkpointer: Checkpointer) -> None:
        self.checkpointer = checkpointer

    def __call__(self, rollout: int, tell: Callable[[str], None]) -> None:
        """Write the folder of a rollout, where the interval has it, and tell the server of it. A
        collective. Raises ServerFailed, and OSError if writing fails.
        """
        ranks, section = self.session.ranks, self.session.config.rollout
        assert isinstance(section, OpenAIRollout)
        first = rollout - rollout % section.weights_interval
        target = self.folder / f"{first:06d}-{self.version}"
        # In the middle of an interval the weights in training are later ones.
        if not ranks.from_main(first < rollout and target.is_dir()):
            target = self.folder / f"{rollout:06d}-{self.version}"
            self._write(rollout, target)
        fault: Exception | None = None
        if ranks.main:
            try:
                self._point_to(target)
                tell(str(target.absolute()))
            except (ServerFailed, OSError) as error:
                fault = error
        fault = ranks.from_main(fault)
        if fault is not None:
            raise fault

    def _write(self, rollout: int, target: Path) -> None:
        session, ranks = self.session, self.session.ranks
        scratch = self.folder / PARTIAL
        if self.checkpointer is not None:
            self.checkpointer.wait()  # two saves at a time would mix their exchanges
        if ranks.main:
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir(parents=True)
        run_id = directory.run_id(session.run_dir)
        writer = Checkpointer(scratch, session.config, session.tokenizer, run_id, ranks)
        writer.base = None if self.checkpointer is None else self.checkpointer.base
        meta: dict[str, Any] = {
            "reason": "rollout",
            "metrics": {},
            "best_by": session.config.eval.metric,
        }
        meta |= {"higher_is_better": False, "train": {}}
        meta["data"] = {"train": None, "tokenizer": session.tokenizer.fingerprint}
        try:
            writer.save(
                rollout,
                model=session.model,
                optimizer=session.optimizer,
                meta=meta,
                extra={},
                weights_only=True,
            )
            writer.wait()
        finally:
            writer.close()
        ranks.barrier()
        fault: Exception | None = None
        if ranks.main:
            try:
                self._export(scratch, scratch / f"step_{rollout}", target)
            except (OSError, ValueError) as error:
                fault = error
        fault = ranks.from_main(fault)
        if fault is not None:
            raise fault

    def _export(self, scratch: Path, checkpoint: Path, target: Path) -> None:
        out = scratch / "folder"
        config = self.session.config
        options: Any = {"family": None, "dtype": None, "shard_bytes": SHARD_BYTES}
        summary = export_folder(checkpoint, config, out, **options)
        for path in out.iterdir():
            sync(path)
        shutil.rmtree(target, ignore_errors=True)  # of an earlier start
        out.rename(target)
        sync(self.folder)
        shutil.rmtree(scratch, ignore_errors=True)
        if target.name.startswith("000000"):
            say(f"weights for the server: {target}, {summary}")

    def _point_to(self, target: Path) -> None:
        """Let `current` lead to a folder, and remove the folders before the last ones."""
        link = self.folder / f".{CURRENT}"
        link.unlink(missing_ok=True)
        link.symlink_to(target.name)
        os.replace(link, self.folder / CURRENT)
        folders = sorted(path for path in self.folder.iterdir() if path.name[:6].isdecimal())
        older = [path for path in folders if path.name <= target.name]
        for path in older[:-KEPT]:
            shutil.rmtree(path, ignore_errors=True)


def hand_over_of(session: Session) -> WeightFolders | None:
    """The hand-over of a run whose rollouts a server writes with the weights in training."""
    return WeightFolders(session) if WeightFolders.wanted(session) else None
