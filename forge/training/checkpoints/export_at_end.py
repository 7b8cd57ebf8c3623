"""The last checkpoint as a folder of Hugging Face: checkpoint.export_at_end."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

from forge.config.root import Config
from forge.rundir.checkpoints import newest_usable, saved_folder
from forge.training.checkpoints.hf_folders import export_folder
from forge.training.process import say

log = logging.getLogger(__name__)
EXPORT = "export"
SHARD_BYTES = 5_000_000_000


def export_at_end(run_dir: Path, config: Config) -> None:
    """Write RUN/export from the newest checkpoint, in place of an earlier one; complete or absent.

    A model outside of all families, or a full disk, is a warning: the run itself has ended well.
    """
    out, scratch = run_dir / EXPORT, run_dir / f".{EXPORT}.partial"
    shutil.rmtree(scratch, ignore_errors=True)
    try:
        saved, _ = newest_usable(saved_folder(run_dir))
        if saved is None:
            raise ValueError("there is no checkpoint")
        if config.adapter.active:
            raise ValueError("adapters are exported by forge.export, merged or apart")
        common = {"family": None, "dtype": None, "shard_bytes": SHARD_BYTES}
        text = export_folder(saved.path, config, scratch, **common)
        shutil.rmtree(out, ignore_errors=True)
        scratch.rename(out)
        say(f"  {'exported':<16} {out}: {text}")
    except (ValueError, OSError) as error:
        log.warning("checkpoint.export_at_end: nothing is exported: %s", error)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
