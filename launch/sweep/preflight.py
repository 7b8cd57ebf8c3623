"""All points of a sweep, composed, resolved and checked before anything is started or written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from forge.cli import as_typed
from forge.compose.composition import compose_choices
from forge.compose.many import Composer
from forge.config.launch import Launch, Local
from forge.config.problems import (
    COMMAND_LINE,
    ConfigError,
    Problem,
    closest,
    did_you_mean,
    refusal,
)
from forge.config.root import Config
from forge.launch.sweep import expand
from forge.launch.sweep.expand import SEEDS, Combination
from forge.launch.sweep.refused import PointsRefused
from forge.planning.world import Devices, find_devices
from forge.resolve import decision
from forge.resolve.resolve import Resolution, resolve
from forge.resolve.rules.devices import HOST_MEMORY
from forge.rundir.files import unwritable
from forge.rundir.identity import hash_of, is_free

MOST = 20_000
OTHER_PLACE = "choose another place with sweep.root"


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A runnable point. hash: of its identity, and of the varied free options."""

    combination: Combination
    resolution: Resolution
    hash: str


class Preflight:
    """Check the points of a command; group choices are composed once for all points."""

    def __init__(
        self,
        overrides: Sequence[str],
        config_dirs: Sequence[str] = (),
        devices: Devices | None = None,
    ) -> None:
        """overrides: as typed; intervals are left to `points`, or to a search by Optuna. Raises
        ConfigError when nothing composes at all.
        """
        plain = expand.without_intervals(overrides)
        self.overrides, self.config_dirs = tuple(overrides), tuple(config_dirs)
        self._composer = Composer(config_dirs)
        self._here = devices or find_devices()
        self._typed = expand.grid(
            plain, {}, lambda: compose_choices(plain, config_dirs=config_dirs)[0].library
        )
        if self._typed.problems:
            raise ConfigError(self._typed.problems)
        first = [texts[0] for texts in self._typed.choices.values() if texts]
        self._first, self._config = self._composer(first)
        self.library, self.written_at = self._first.library, self._first.written_at
        config = self._config  # all points have equal sections of launch, sweep and sweeper
        self.launch, self.sweep, self.sweeper = config.launch, config.sweep, config.sweeper
        self.common: dict[str, Any] = {}  # values common to all points, once known

    @cached_property
    def place(self) -> Path:
        """The directory of the sweep. Raises ConfigError for a directory impossible to make."""
        name = self.sweep.name or self._named("experiment") or self._named("model") or "default"
        path = Path(self.sweep.root).expanduser() / name
        if why := unwritable(str(path)):
            message = f"the directory {path} cannot be made or written: {why}."
            raise refusal(f"sweep.root={self.sweep.root}", message, OTHER_PLACE)
        return path.resolve()

    @property
    def plan(self) -> dict[str, str]:
        """Question, hypothesis and decision rule, where given."""
        names = ("question", "hypothesis", "decision")
        return {name: text for name in names if (text := getattr(self.sweep, name)) is not None}

    def _named(self, group: str) -> str:
        """The option of a group, when common to all points; else ''."""
        typed = self._typed.choices.items()
        if any(key.lstrip("+") == group and len(texts) > 1 for key, texts in typed):
            return ""
        files = [path.partition("/") for path, _ in self._first.files]
        return "+".join(name for folder, _, name in files if folder == group).replace("/", "-")

    def points(self) -> list[Planned]:
        """Every combination of varied values. Raises ConfigError with every problem."""
        params, ablation = self.sweeper.params, self.sweep.ablation
        grid = expand.grid(self.overrides, params, lambda: self.library, self.written_at)
        problems = [
            *grid.problems,
            *expand.contradictions(grid, ablation, self.written_at),
            *self._of_one_run(),
        ]
        count = len(grid) * max(len(ablation.arms), 1) * max(len(ablation.seeds), 1)
        if count > MOST:
            message = f"these are {count:,} points, and a sweep has at most {MOST:,}."
            problems.append(
                Problem("-m", message, "fewer values, or several sweeps", where=COMMAND_LINE)
            )
        if problems:
            raise ConfigError(problems)
        planned = self.check(expand.expand(grid, ablation, self.written_at))
        if unknown := list(self._undecidable([point.combination for point in planned])):
            raise ConfigError(unknown)
        return planned

    def _undecidable(self, combinations: Sequence[Combination]) -> Iterable[Problem]:
        """Problems of a decision rule about arms or values that this sweep does not have."""
        rule = decision.parse(self.sweep.decision or "")
        names = dict.fromkeys(
            name for combination in combinations for name in decision.names(combination.named)
        )
        for side in (rule.first, rule.second) if rule else ():
            if decision.normal(side) not in names:
                where = self.written_at("sweep.decision")
                message = f"this sweep has no arm or value '{side}'."
                hint = did_you_mean(closest(side, names)) or f"one of {', '.join(names)}"
                yield Problem("sweep.decision", message, hint, where=where)

    def _of_one_run(self) -> Iterable[Problem]:
        """Problems of options of a single run, meaningless for many runs."""
        run, where = self._config.run, self.written_at
        if run.dir:
            message = "each point has a directory of its own in that of the sweep."
            hint = "leave it out; sweep.name and sweep.root say where the sweep is"
            yield Problem(f"run.dir={run.dir}", message, hint, where=where("run.dir"))
        if run.inline:
            message = "the points of a sweep run in processes of their own."
            hint = "run.inline=false, or one point without -m"
            yield Problem("run.inline=true", message, hint, where=where("run.inline"))

    def check(self, combinations: Sequence[Combination]) -> list[Planned]:
        """The points of these combinations. Raises ConfigError with all problems of all points, and
        for two points of the same run.
        """
        planned: list[Planned] = []
        refused: dict[int, Sequence[Problem]] = {}
        for number, combination in enumerate(combinations):
            try:
                planned.append(self._point(combination))
            except ConfigError as error:
                refused[number] = _placed(error.problems, combination.places)
        if refused and len(combinations) == 1:
            raise ConfigError(refused[0])
        if refused:
            raise PointsRefused(refused, combinations)
        if twins := list(_twins(planned)):
            raise ConfigError(twins)
        return planned

    def _point(self, combination: Combination) -> Planned:
        composition, config = self._composer(combination.overrides)
        try:
            resolution = resolve(
                config,
                known=(*composition.problems, *self._differences(config)),
                origin=composition.origin,
                devices=self._devices(config.launch),
            )
        except ConfigError as error:
            raise ConfigError(as_typed(error.problems, combination.overrides)) from None
        too_large = [warning for warning in resolution.warnings if warning.rule == HOST_MEMORY]
        if too_large:
            raise ConfigError([replace(warning, warning=False) for warning in too_large])
        changes, config = combination.changes.items(), resolution.config
        free = {key: value for key, value in changes if is_free(key)}
        return Planned(combination=combination, resolution=resolution, hash=hash_of(config, free))

    def _differences(self, config: Config) -> Iterable[Problem]:
        """Problems of sweep sections different from the first point's."""
        for section in ("launch", "sweep", "sweeper"):
            if vars(getattr(config, section)) != vars(getattr(self._config, section)):
                message = f"the first point has another {section}, and all are started together."
                yield Problem(section, message, f"leave {section} out of what varies")

    def _devices(self, launch: Launch) -> Devices:
        """The devices of a point: its share of the devices here, for several points at a time."""
        available = self._here
        if not isinstance(launch, Local) or not available.gpus:
            return available
        if launch.jobs == 1 and launch.devices_per_job is None:
            return available
        gpus = launch.devices_per_job or max(available.gpus // launch.jobs, 1)
        source = f"launch.jobs={launch.jobs} share {available.gpus} GPUs"
        return replace(available, gpus=min(gpus, available.gpus), source=source)


def _placed(problems: Sequence[Problem], places: Mapping[str, str]) -> list[Problem]:
    """Problems located in the file or arm of their override, instead of the command line."""
    if "seed" in places and any(problem.option == SEEDS for problem in problems):
        problems = [p for p in problems if p.option != "seed"]  # reported for the seeds already
    result = []
    for problem in problems:
        option = f"{problem.option}."
        location = next(
            (where for key, where in places.items() if option.startswith(f"{key}.")), ""
        )
        if location and problem.where.startswith(COMMAND_LINE):
            problem = replace(problem, where=location + problem.where.removeprefix(COMMAND_LINE))
        result.append(problem)
    return result


def _twins(planned: Sequence[Planned]) -> Iterable[Problem]:
    labels_by_hash: dict[str, list[str]] = defaultdict(list)
    for number, point in enumerate(planned):
        labels_by_hash[point.hash].append(f"#{number} ({point.combination.label})")
    for labels in labels_by_hash.values():
        if len(labels) > 1:
            suffix = f" and {len(labels) - 3} more" if len(labels) > 3 else ""
            *earlier, last = labels[:3]
            message = f"{', '.join(earlier)} and {last}{suffix} are the same run."
            hint = "give each value once, and values that make a difference"
            yield Problem("-m", message, hint, where=COMMAND_LINE)
