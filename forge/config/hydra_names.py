"""Accepted names beside forge's own: Hydra's for a sweep and its launcher, and former names of
options.

`hydra/launcher=submitit_slurm hydra.launcher.timeout_min=60` means `launch=slurm launch.time=60`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

GROUPS = {"hydra/launcher": "launch", "hydra/sweeper": "sweeper"}
SECTIONS = {"hydra.launcher": "launch", "hydra.sweeper": "sweeper"}
LAUNCHERS = {"basic": "local", "submitit_slurm": "slurm"}
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
"""Options of the submitit plugin with another name in forge."""
FORMER = {"hf_dataset_text_field": "text_field"}
"""Former names of options, still found in old files, runs and commands."""
FORMER_WORD = re.compile(rf"(?<![\w-])({'|'.join(FORMER)})(?=\s*[:=])")
OVERRIDE = re.compile(r"([+~]*)(hydra[/.](?:launcher|sweeper)[^=]*)(=?)(.*)", re.DOTALL)


def translate(text: str) -> str:
    """Translate an override to forge's names."""
    text = FORMER_WORD.sub(lambda match: FORMER[match[1]], text)
    match = OVERRIDE.fullmatch(text)
    if match is None:
        return text
    signs, key, equals, value = match.groups()
    if group := GROUPS.get(key):
        return f"{signs.lstrip('+')}{group}{equals}{translate_option(group, value)}"
    ours = translate_key(key)
    return text if ours == key else f"{signs}{ours}{equals}{_with_unit(ours, value)}"


def translate_option(group: str, value: str) -> str:
    """Translate the option of a group of forge, or several with commas between them."""
    if group != "launch":
        return value
    return ",".join(LAUNCHERS.get(name.strip(), name) for name in value.split(","))


def translate_key(key: str) -> str:
    """Translate a dotted key: launch.time for hydra.launcher.timeout_min."""
    for section, ours in SECTIONS.items():
        if key.startswith(f"{section}."):
            name, dot, end = key.removeprefix(f"{section}.").partition(".")
            return f"{ours}.{LAUNCHER_KEYS.get(name, name) if ours == 'launch' else name}{dot}{end}"
    above, dot, last = key.rpartition(".")
    return f"{above}{dot}{FORMER.get(last, last)}"


def renamed(content: Any) -> Any:
    """Nested dicts and lists with the present names of options."""
    if isinstance(content, Mapping):
        return {FORMER.get(key, key): renamed(value) for key, value in content.items()}
    return [renamed(value) for value in content] if isinstance(content, list) else content


def translate_file(content: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a YAML file, with `hydra: {sweeper: ..., launcher: ...}` under forge's
    names.
    """
    content = renamed(content)
    hydra = content.get("hydra")
    if not isinstance(hydra, Mapping):
        return dict(content)
    hydra_rest = {key: value for key, value in hydra.items() if f"hydra.{key}" not in SECTIONS}
    result: dict[str, Any] = {key: value for key, value in content.items() if key != "hydra"}
    result |= {"hydra": hydra_rest} if hydra_rest else {}
    for section, ours in SECTIONS.items():
        values = hydra.get(section.partition(".")[2]) or {}
        if not isinstance(values, Mapping):
            result[ours] = translate_option(ours, values) if isinstance(values, str) else values
            continue
        for key, value in values.items():
            full = translate_key(f"{section}.{key}")
            *above, last = full.split(".")
            target = result
            for part in above:
                target[part] = dict(target.get(part) or {})
                target = target[part]
            target[last] = _with_unit(full, value)
    return result


def _with_unit(key: str, value: Any) -> Any:
    return f"{value}G" if key == "launch.mem" and str(value).isdecimal() else value
