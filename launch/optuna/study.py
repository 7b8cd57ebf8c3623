"""The trials of a sweep that Optuna chooses, in a journal in its directory."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forge.config.problems import ConfigError, Problem
from forge.launch.optuna.setting import OTHER_NAME, Setting, check_same
from forge.launch.optuna.space import Space

if TYPE_CHECKING:
    from optuna import Study
    from optuna.samplers import BaseSampler
    from optuna.trial import FrozenTrial, Trial

FILE = "optuna.journal"
INSTEAD_OF, REASON, POINT, OVERRIDES = "instead_of", "reason", "point", "overrides"
"""What the journal keeps of a trial: the one whose place it has taken, why it failed, its point,
and what it adds to the command.
"""


class Trials:
    """Asks for trials, and tells how they went. Where a process was killed, its trials have failed,
    and others are in their place.

    The n-th trial is drawn with a generator of its own, by the seed and n, so that a sweep that was
    stopped goes on as if it had not been.
    """

    def __init__(
        self, folder: Path, space: Space, setting: Setting, *, sampler: str, seed: int
    ) -> None:
        """Looks at the journal that is there, and writes nothing. Raises ConfigError when its
        trials are not of this sweep.
        """
        self.file, self.space, self.setting, self.sampler, self.seed = (
            folder / FILE,
            space,
            setting,
            sampler,
            seed,
        )
        if self.file.exists() and (study := self._opened()) is not None:
            check_same(setting, space, study, folder.name)

    def begin(self, *, retry: bool) -> None:
        """Open the journal, which only who holds the directory may do; what was running is enqueued
        again, with `retry` what failed too.
        """
        import optuna

        mend(self.file)
        study = self._opened()
        if study is None:
            direction = optuna.study.StudyDirection[self.setting.direction.upper()]
            study = optuna.create_study(
                storage=_storage(self.file), study_name=self.file.parent.name, direction=direction
            )
            study.set_user_attr("setting", self.setting.kept)
        self.study: Study = study
        for trial in self.known():
            if trial.state.name == "RUNNING":
                self.put_back(trial.number)
            elif trial.state.name == "FAIL" and retry:
                self._enqueue(trial)

    def known(self, *states: str) -> list[FrozenTrial]:
        """All in order, or those that are COMPLETE, FAIL, WAITING or RUNNING; without those that
        another has taken the place of.
        """
        trials = self.study.get_trials(deepcopy=False)
        replaced = {trial.user_attrs.get(INSTEAD_OF) for trial in trials}
        return [
            trial
            for trial in trials
            if trial.number not in replaced and (not states or trial.state.name in states)
        ]

    def ask(self) -> Trial:
        """The next: one that is enqueued, else what the sampler chooses from all that is known."""
        trials = self.known()
        place = next(
            (place for place, trial in enumerate(trials) if trial.state.name == "WAITING"),
            len(trials),
        )
        if place == len(trials) and self.sampler == "grid":
            self.study.enqueue_trial(self.space.nth(self._order()[place]))
        digest = hashlib.blake2b(f"{self.seed}/{place}".encode(), digest_size=4).digest()
        self.study.sampler = _sampler(self.sampler, int.from_bytes(digest))
        return self.study.ask({key: param.distribution for key, param in self.space.params.items()})

    def tell(self, trial: Trial, value: float) -> None:
        """It has reached this objective."""
        self.study.tell(trial.number, value)

    def fail(self, trial: Trial, reason: str) -> None:
        """It has none."""
        trial.set_user_attr(REASON, reason)
        self._end(trial.number)

    def put_back(self, number: int) -> None:
        """It was stopped: one with its parameters is asked for again."""
        trials = self.study.get_trials(deepcopy=False)
        if number not in [trial.user_attrs.get(INSTEAD_OF) for trial in trials]:
            self._enqueue(trials[number])
        self._end(number)

    @property
    def best(self) -> FrozenTrial | None:
        """The first of the best, where any has an objective."""
        return self.study.best_trial if self.known("COMPLETE") else None

    def _enqueue(self, trial: FrozenTrial) -> None:
        params = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
        self.study.enqueue_trial(params, user_attrs={INSTEAD_OF: trial.number})

    def _end(self, number: int) -> None:
        from optuna.trial import TrialState

        self.study.tell(number, state=TrialState.FAIL)

    def _order(self) -> list[int]:
        """The places of a grid, in the order in which it is gone through."""
        places = list(range(self.space.size or 0))
        random.Random(self.seed).shuffle(places)
        return places

    def _opened(self) -> Study | None:
        """The study in the journal, where there is one. Raises ConfigError."""
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            storage = _storage(self.file)
        except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
            what = f"{self.file} cannot be read: {error}."
            raise ConfigError(
                [Problem(key=f"sweep.name={self.file.parent.name}", what=what, fix=OTHER_NAME)]
            ) from None
        names = optuna.get_all_study_names(storage)
        return optuna.load_study(study_name=names[0], storage=storage) if names else None


def mend(journal: Path) -> None:
    """Take back the line that a kill left unfinished, which Optuna would write on, and its lock:
    whoever holds the sweep is alone here.
    """
    Path(f"{journal}.lock").unlink(missing_ok=True)
    if journal.exists():
        with journal.open("rb+") as file:
            file.truncate(file.read().rfind(b"\n") + 1)


def _storage(journal: Path) -> Any:
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    return JournalStorage(JournalFileBackend(str(journal)))


def _sampler(name: str, seed: int) -> BaseSampler:
    """The sampler of this name; one that draws from a grid has all values given."""
    from optuna import samplers

    from forge.launch.optuna.cmaes import CmaEs

    kinds = {"tpe": samplers.TPESampler, "cmaes": CmaEs, "gp": samplers.GPSampler}
    return kinds.get(name, samplers.RandomSampler)(seed=seed)
