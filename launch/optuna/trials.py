"""The trials of a search, in a journal of Optuna in the directory of its sweep."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import check_distribution_compatibility
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from forge.config.problems import ConfigError, Problem, refusal
from forge.launch.optuna.space import Space, space_in_words
from forge.launch.sweep.directory import OTHER_NAME
from forge.launch.sweep.results import JOURNAL

INSTEAD_OF, REASON, POINT, OVERRIDES = "instead_of", "reason", "point", "overrides"
"""What the journal keeps of a trial: the one that it replaces, why it failed, its point, and the
overrides that it adds to the command.
"""
STATE = re.compile(
    r"cmaes\._(cma\.CMA|sepcma\.SepCMA|cmawm\.CMAwM)"
    r"|numpy\.(ndarray|dtype|_?core\.multiarray\.(_reconstruct|scalar))"
)
"""All that the pickled state of CMA-ES names."""
SHOWN = 5
ABSENT = object()


class Trials:
    """Ask Optuna for trials, and tell Optuna the results. A stopped trial counts as failed, and a
    new trial with its parameters replaces it. The n-th trial is drawn by the n-th generator, so
    that a stopped search continues as if never stopped.
    """

    def __init__(
        self,
        folder: Path,
        space: Space,
        options: Mapping[str, Any],
        *,
        objective: str,
        direction: str,
        sampler: str,
        seed: int,
    ) -> None:
        """options: of all trials, by key. Writes nothing. Raises ConfigError for trials in the
        journal not comparable with the trials of this search.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.file, self.space, self.sampler, self.seed = folder / JOURNAL, space, sampler, seed
        self.objective, self.direction = objective, direction
        setting = {"objective": objective, "options": dict(options)}
        self.setting = json.loads(json.dumps(setting, default=str))
        study = self._opened() if self.file.exists() else None
        problems = list(self._differences(study, folder.name)) if study is not None else []
        if problems:
            raise ConfigError(problems)

    def begin(self, *, retry: bool) -> None:
        """Open the journal, as the holder of the directory; running trials are enqueued again, with
        `retry` also failed trials.
        """
        # A kill leaves Optuna's lock, and an unfinished line to which Optuna would append.
        Path(f"{self.file}.lock").unlink(missing_ok=True)
        if self.file.exists():
            with self.file.open("rb+") as file:
                file.truncate(file.read().rfind(b"\n") + 1)
        study = self._opened()
        if study is None:
            study = optuna.create_study(
                storage=_storage(self.file),
                study_name=self.file.parent.name,
                direction=optuna.study.StudyDirection[self.direction.upper()],
            )
            study.set_user_attr("setting", self.setting)
        self.study = study
        for trial in self.known("RUNNING"):
            self.put_back(trial.number)
        for trial in self.known("FAIL") if retry else ():
            self._enqueue(trial)

    def known(self, *states: str) -> list[FrozenTrial]:
        """All trials in order, or the trials in `states` of COMPLETE, FAIL, WAITING and RUNNING;
        without replaced trials.
        """
        trials = self.study.get_trials(deepcopy=False)
        replaced = {trial.user_attrs.get(INSTEAD_OF) for trial in trials}
        trials = [trial for trial in trials if trial.number not in replaced]
        return [trial for trial in trials if not states or trial.state.name in states]

    def ask(self) -> Trial:
        """The next trial: an enqueued trial, else a choice of the sampler."""
        waiting = [trial.state.name == "WAITING" for trial in self.known()]
        position = waiting.index(True) if any(waiting) else len(waiting)
        if position == len(waiting) and self.sampler == "grid":
            order = list(range(len(self.space.all)))
            random.Random(self.seed).shuffle(order)
            self.study.enqueue_trial(self.space.all[order[position]])
        digest = hashlib.blake2b(f"{self.seed}/{position}".encode(), digest_size=4).digest()
        self.study.sampler = sampler(self.sampler, int.from_bytes(digest))
        return self.study.ask(dict(self.space.params))

    def tell(self, trial: Trial, value: float) -> None:
        self.study.tell(trial.number, value)

    def fail(self, trial: Trial, reason: str) -> None:
        trial.set_user_attr(REASON, reason)
        self.study.tell(trial.number, state=TrialState.FAIL)

    def put_back(self, number: int) -> None:
        """Replace a stopped trial by a new trial with its parameters."""
        trials = self.study.get_trials(deepcopy=False)
        if number not in [trial.user_attrs.get(INSTEAD_OF) for trial in trials]:
            self._enqueue(trials[number])
        self.study.tell(number, state=TrialState.FAIL)

    @property
    def best(self) -> FrozenTrial | None:
        return self.study.best_trial if self.known("COMPLETE") else None

    def _enqueue(self, trial: FrozenTrial) -> None:
        params = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
        self.study.enqueue_trial(params, user_attrs={INSTEAD_OF: trial.number})

    def _opened(self) -> optuna.Study | None:
        try:
            storage = _storage(self.file)
        except (OSError, ValueError, KeyError, TypeError, AssertionError) as error:
            message = f"{self.file} cannot be read: {error}."
            raise refusal(f"sweep.name={self.file.parent.name}", message, OTHER_NAME) from None
        names = optuna.get_all_study_names(storage)
        return optuna.load_study(study_name=names[0], storage=storage) if names else None

    def _differences(self, study: optuna.Study, name: str) -> Iterator[Problem]:
        trials = study.get_trials(deepcopy=False)
        distributions = {
            key: distribution
            for trial in trials
            for key, distribution in trial.distributions.items()
        }
        for key, param in self.space.params.items():
            try:
                check_distribution_compatibility(distributions.get(key, param), param)
            except ValueError:
                message = (
                    f"the trials of {name} were chosen from {space_in_words(distributions[key])}"
                )
                message += ", and only the ends of a range may change."
                yield Problem(f"{key}={space_in_words(param)}", message, OTHER_NAME)
        earlier = study.user_attrs.get("setting") or self.setting
        direction = {"sweeper.direction": study.direction.name.lower()}
        was = {"run.objective": earlier["objective"], **direction, **earlier["options"]}
        now = {"run.objective": self.objective, "sweeper.direction": self.direction}
        now |= self.setting["options"]
        searched = tuple(
            f"{key.replace('/', '.')}." for key in {*distributions, *self.space.params}
        )
        keys = [key for key in {**was, **now} if not f"{key}.".startswith(searched)]
        differ = [key for key in keys if was.get(key, ABSENT) != now.get(key, ABSENT)]
        for key in differ[:SHOWN]:
            had = f"{key}={was[key]}" if key in was else f"no {key}"
            message = f"the trials of {name} had {had}, and what they reached cannot be compared."
            hint = f"{OTHER_NAME}, or leave it as it was"
            yield Problem(f"{key}={now[key]}" if key in now else key, message, hint)
        if omitted := len(differ[SHOWN:]):
            yield Problem(f"sweep.name={name}", f"{omitted} more options differ.", OTHER_NAME)


class CmaEs(optuna.samplers.CmaEsSampler):
    """Optuna's sampler with a safe load of its state. The state in the journal is a pickle, able to
    run any command of its writer: a pickle with names beyond arrays and CMA-ES is refused.
    """

    def _restore_optimizer(self, completed_trials: list[FrozenTrial]) -> Any:
        for trial in reversed(completed_trials):
            attributes = trial.system_attrs.items()
            parts = {
                key: part for key, part in attributes if key.startswith(self._attr_key_optimizer)
            }
            if parts:
                state = bytes.fromhex(self._concat_optimizer_attrs(parts))
                return Unpickler(io.BytesIO(state)).load()
        return None


class Unpickler(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if not STATE.fullmatch(name := f"{module_name}.{global_name}"):
            message = f"the state of cmaes in the journal cannot be used: it names {name}."
            raise refusal("sweeper.sampler=cmaes", message, OTHER_NAME)
        return super().find_class(module_name, global_name)


def sampler(name: str, seed: int) -> optuna.samplers.BaseSampler:
    """The sampler of this name; for a grid all values come from outside the sampler."""
    from optuna import samplers

    kinds = {"tpe": samplers.TPESampler, "cmaes": CmaEs, "gp": samplers.GPSampler}
    return kinds.get(name, samplers.RandomSampler)(seed=seed)


def _storage(journal: Path) -> JournalStorage:
    return JournalStorage(JournalFileBackend(str(journal)))
