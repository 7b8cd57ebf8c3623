"""Hydra's words for a sweep and its launcher, and those of its submitit plugin, which forge takes
as other spellings of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

GROUPS = {"hydra/launcher": "launch", "hydra/sweeper": "sweeper"}
OPTIONS = {"basic": "local", "submitit_slurm": "slurm"}
"""Launchers of another name here; any other, such as submitit_local, and every sweeper, has the one
it has there.
"""
SECTIONS = {"hydra.launcher": "launch", "hydra.sweeper": "sweeper"}
LAUNCHER_KEYS = {
    "timeout_min": "time",
    "mem_gb": "mem",
    "n_jobs": "jobs",
    "signal_delay_s": "signal_before",
    "max_num_timeout": "max_requeues",
    "additional_parameters": "sbatch",
    "gres": "sbatch.gres",
    "exclude": "sbatch.exclude",
    "comment": "sbatch.comment",
    "mail_type": "sbatch.mail-type",
    "mail_user": "sbatch.mail-user",
    "mem_per_cpu": "sbatch.mem-per-cpu",
    "mem_per_gpu": "sbatch.mem-per-gpu",
    "cpus_per_gpu": "sbatch.cpus-per-gpu",
}
"""Options of the submitit plugin that have another name here."""
TYPED = re.compile(r"([+~]*)(hydra[/.](?:launcher|sweeper)[^=]*)(=?)(.*)", re.DOTALL)


def ours(text: str) -> str:
    """An override as forge spells it: `launch=slurm` for `hydra/launcher=submitit_slurm`; any other
    is as it was.
    """
    match = TYPED.fullmatch(text)
    if match is None:
        return text
    sign, key, equals, value = match.groups()
    if key in GROUPS:
        return f"{sign.lstrip('+')}{GROUPS[key]}{equals}{option(GROUPS[key], value)}"
    found = key_of(key)
    return text if found == key else f"{sign}{found}{equals}{_value(found, value)}"


def option(group: str, value: str) -> str:
    """The option of our group that one of Hydra's, or several with commas between them, stand for."""
    return (
        ",".join(OPTIONS.get(word.strip(), word) for word in value.split(","))
        if group == "launch"
        else value
    )


def of_file(content: Mapping[str, Any]) -> dict[str, Any]:
    """What a file sets, with `hydra: {sweeper: ..., launcher: ...}` under our names; of hydra, the
    rest is left where it is.
    """
    hydra = content.get("hydra")
    if not isinstance(hydra, Mapping):
        return dict(content)
    result: dict[str, Any] = {name: value for name, value in content.items() if name != "hydra"}
    rest = {name: value for name, value in hydra.items() if f"hydra.{name}" not in SECTIONS}
    for name, section in SECTIONS.items():
        given = hydra.get(name.partition(".")[2]) or {}
        if not isinstance(given, Mapping):
            result[section] = option(section, given) if isinstance(given, str) else given
            continue
        for key, value in given.items():
            found = key_of(f"{name}.{key}")
            place: dict[str, Any] = result
            *above, last = found.split(".")
            for part in above:
                place[part] = dict(place.get(part) or {})
                place = place[part]
            place[last] = _value(found, value)
    return {**result, "hydra": rest} if rest else result


def key_of(key: str) -> str:
    """A dotted key as forge spells it: launch.time for hydra.launcher.timeout_min; any other is as
    it was.
    """
    for name, section in SECTIONS.items():
        if key.startswith(f"{name}."):
            first, dot, rest = key.removeprefix(f"{name}.").partition(".")
            return f"{section}.{LAUNCHER_KEYS.get(first, first) if section == 'launch' else first}{dot}{rest}"
    return key


def _value(key: str, value: Any) -> Any:
    return f"{value}G" if key == "launch.mem" and str(value).isdecimal() else value
