"""All points of a sweep, composed, resolved and checked before anything is started or written."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from forge.cli import as_typed
from forge.compose.composition import chosen
from forge.compose.many import Composer
from forge.compose.origin import origin
from forge.config.launch import Launch, Local
from forge.config.problems import COMMAND_LINE, ConfigError, Problem, shown
from forge.config.root import Config
from forge.config.spelling import ours
from forge.config.sweep import Sweep
from forge.config.sweeper import Sweeper
from forge.launch.sweep.expand import (
    Combination,
    contradictions,
    expand,
    grid,
    key_of,
    of_arm,
    of_params,
)
from forge.launch.sweep.refusal import PointsRefused, Wrong
from forge.plan.world import Devices, find_devices
from forge.resolve.resolve import Resolution, resolve
from forge.resolve.rules.devices import HOST_MEMORY
from forge.resolve.rules.run_directory import unwritable
from forge.rundir.identity import hash_of, is_free

MOST = 20_000
SEEDS = "sweep.ablation.seeds"
SHARED = ("launch", "sweep", "sweeper")


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A point that can run. hash: of its identity, and of what varies besides."""

    combination: Combination
    resolution: Resolution
    hash: str


class Preflight:
    """Checks points one after the other against those before them; group choices are composed once
    for all.
    """

    def __init__(
        self,
        overrides: Sequence[str],
        config_dirs: Sequence[str] = (),
        devices: Devices | None = None,
    ) -> None:
        """overrides: as typed, several values and all. Raises ConfigError when nothing composes at
        all.
        """
        self.overrides, self.config_dirs = tuple(overrides), tuple(config_dirs)
        self._composer = Composer(config_dirs)
        self._here = devices or find_devices()
        self._typed = grid(
            overrides, {}, lambda: chosen(overrides, config_dirs=config_dirs)[0].library
        )
        if self._typed.problems:
            raise ConfigError(self._typed.problems)
        self._first, self._config = self._composer(self._typed.first)

    @property
    def launch(self) -> Launch:
        """How points are started, which is the same for all, as are the two below."""
        return self._config.launch

    @property
    def sweep(self) -> Sweep:
        return self._config.sweep

    @property
    def sweeper(self) -> Sweeper:
        return self._config.sweeper

    @cached_property
    def place(self) -> Path:
        """The directory of the sweep, which depends on its name alone. Raises ConfigError when it
        cannot be made.
        """
        name = self.sweep.name or self._named("experiment") or self._named("model") or "default"
        path = Path(self.sweep.root).expanduser() / name
        if why := unwritable(str(path)):
            what = f"the directory {path} cannot be made or written: {why}."
            raise ConfigError(
                [
                    Problem(
                        key=f"sweep.root={self.sweep.root}",
                        what=what,
                        fix="choose another place with sweep.root",
                    )
                ]
            )
        return path.resolve()

    def _named(self, group: str) -> str:
        """The file of a group that all points have, when they have one."""
        varies = any(
            key.lstrip("+") == group and len(texts) > 1
            for key, texts in self._typed.choices.items()
        )
        files = [
            path.removeprefix(f"{group}/")
            for path, _ in self._first.files
            if path.startswith(f"{group}/")
        ]
        return "" if varies else "+".join(files).replace("/", "-")

    def points(self) -> list[Planned]:
        """Every combination of what varies. Raises ConfigError with all problems of all points."""
        params, ablation = self.sweeper.params, self.sweep.ablation
        written_at = self._first.written_at
        found = grid(self.overrides, params, lambda: self._first.library, written_at)
        problems = [
            *found.problems,
            *contradictions(self.overrides, params, ablation, written_at),
            *self._of_one_run(),
        ]
        count = len(found) * max(len(ablation.arms), 1) * max(len(ablation.seeds), 1)
        if count > MOST:
            what = f"these are {count:,} points, and a sweep has at most {MOST:,}."
            problems.append(
                Problem(
                    key="-m", what=what, fix="fewer values, or several sweeps", where=COMMAND_LINE
                )
            )
        if problems:
            raise ConfigError(problems)
        return self.check(expand(found, ablation))

    def _of_one_run(self) -> Iterable[Problem]:
        """What is said of a single run, and has no meaning for many."""
        run = self._config.run
        if run.dir is not None:
            what = "each point has a directory of its own in that of the sweep."
            fix = "leave it out; sweep.name and sweep.root say where the sweep is"
            yield Problem(
                key=f"run.dir={run.dir}",
                what=what,
                fix=fix,
                where=self._first.written_at("run.dir"),
            )
        if run.inline:
            what = "the points of a sweep run in processes of their own."
            fix = "run.inline=false, or one point without -m"
            yield Problem(
                key="run.inline=true",
                what=what,
                fix=fix,
                where=self._first.written_at("run.inline"),
            )

    def check(self, combinations: Sequence[Combination]) -> list[Planned]:
        """The points of these combinations. Raises ConfigError with all problems of all, and when
        two are the same run.
        """
        planned: list[Planned] = []
        wrong: list[Wrong] = []
        for number, combination in enumerate(combinations):
            try:
                planned.append(self._point(combination))
            except ConfigError as error:
                problems = _placed(error.problems, self._places(combination))
                wrong.append(Wrong(number=number, combination=combination, problems=problems))
        if wrong and len(combinations) == 1:
            raise ConfigError(wrong[0].problems)
        if wrong:
            raise PointsRefused(wrong, combinations)
        if twins := list(_twins(planned)):
            raise ConfigError(twins)
        return planned

    def _point(self, combination: Combination) -> Planned:
        composition, config = self._composer(combination.overrides)
        known = [*composition.problems, *self._differences(config)]
        try:
            resolution = resolve(
                config,
                known=tuple(known),
                origin=lambda key: origin(composition, key),
                devices=self._shared(config.launch),
            )
        except ConfigError as error:
            raise ConfigError(as_typed(error.problems, combination.overrides)) from None
        if hopeless := [
            replace(warning, warning=False)
            for warning in resolution.warnings
            if warning.rule == HOST_MEMORY
        ]:
            raise ConfigError(hopeless)
        free = {
            key: value
            for key, value in combination.changes.items()
            if is_free(resolution.config, key)
        }
        return Planned(
            combination=combination, resolution=resolution, hash=hash_of(resolution.config, free)
        )

    def _places(self, combination: Combination) -> dict[str, str]:
        """Where the overrides of a point are that were not typed, by key."""
        written_at = self._first.written_at
        typed = {key_of(ours(text)) for text in self.overrides}
        places = {
            key_of(key): of_params(key, written_at)
            for key in self.sweeper.params
            if key_of(key) not in typed
        }
        if self.sweep.ablation.seeds:
            places["seed"] = f"{written_at(SEEDS)}, {SEEDS}"
        if combination.arm:
            places |= {
                key_of(text) or "''": of_arm(combination.arm, written_at)
                for text in combination.of_arm
            }
        return places

    def _differences(self, config: Config) -> Iterable[Problem]:
        """Sections that are the sweep's, and not a point's, where this one has others."""
        for section in SHARED:
            mine, first = getattr(config, section), getattr(self._config, section)
            other = next(
                (name for name in vars(mine) if getattr(mine, name) != getattr(first, name, None)),
                None,
            )
            if type(mine) is not type(first):
                what = f"the first point has another {section}, and all are started together."
                yield Problem(key=section, what=what, fix=f"leave {section} out of what varies")
            elif other is not None:
                what = f"the first point has {shown(getattr(first, other))} here, and all are started together."
                key = f"{section}.{other}={shown(getattr(mine, other))}"
                yield Problem(key=key, what=what, fix=f"leave {section} out of what varies")

    def _shared(self, launch: Launch) -> Devices:
        """The devices that a point has: of those here, its share, where several run at a time."""
        if (
            not isinstance(launch, Local)
            or not self._here.gpus
            or (launch.jobs == 1 and launch.devices_per_job is None)
        ):
            return self._here
        gpus = launch.devices_per_job or max(self._here.gpus // max(launch.jobs, 1), 1)
        source = f"launch.jobs={launch.jobs} share {self._here.gpus} GPUs"
        return replace(self._here, gpus=min(gpus, self._here.gpus), source=source)


def _placed(problems: Sequence[Problem], places: Mapping[str, str]) -> tuple[Problem, ...]:
    """The same, where what was set of a point stands in a file, or in an arm; a seed that the
    ablation gave is said of the ablation.
    """
    given = "seed" in places and any(problem.option == SEEDS for problem in problems)
    result = []
    for problem in problems:
        place = next(
            (place for key, place in places.items() if f"{problem.option}.".startswith(f"{key}.")),
            "",
        )
        if place and problem.where.startswith(COMMAND_LINE):
            problem = replace(problem, where=place + problem.where.removeprefix(COMMAND_LINE))
        result += [] if given and problem.option == "seed" else [problem]
    return tuple(result)


def _twins(planned: Sequence[Planned]) -> Iterable[Problem]:
    """Points that are the same run."""
    same: dict[str, list[int]] = defaultdict(list)
    for number, point in enumerate(planned):
        same[point.hash].append(number)
    for numbers in same.values():
        if len(numbers) > 1:
            named = [f"#{number} ({planned[number].combination.label})" for number in numbers[:3]]
            more = f" and {len(numbers) - 3} more" if len(numbers) > 3 else ""
            what = f"{', '.join(named[:-1])} and {named[-1]}{more} are the same run."
            yield Problem(
                key="-m",
                what=what,
                fix="give each value once, and values that make a difference",
                where=COMMAND_LINE,
            )
