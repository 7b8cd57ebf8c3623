"""torch, CUDA, NCCL and gloo, from what the probe process said."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from forge.doctor.ask import ask
from forge.doctor.finding import Finding, missing, ok, warn
from forge.doctor.software import outside, requirement

SECONDS = 60.0
INSTALL = "pip install 'torch{range}' in the environment of {python}"
CUDA_ONLY = "only needed for run.device=cuda"
CUDA_BUILD = "a CUDA build of torch, as pytorch.org/get-started has it for this driver; "


def probe(seconds: float = SECONDS) -> dict[str, Any]:
    """The report of `forge.doctor.torch_probe`; `doing` and `end` say where it was and how it
    ended when that was too early.
    """
    answer = ask([sys.executable, "-m", "forge.doctor.torch_probe"], seconds=seconds)
    report: dict[str, Any] = {}
    for line in answer.out.splitlines() if answer else ():
        try:
            report |= json.loads(line)
        except (ValueError, TypeError):
            continue  # a library's own words
    if answer is None or answer.code:
        report["end"] = (
            f"ended with {answer.code}: {answer.last_words}" if answer else "could not be started"
        )
    elif answer.code is None:
        report["end"] = f"no answer in {seconds:g} s"
    return report


def findings(report: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> list[Finding]:
    """torch, CUDA, NCCL, gloo."""
    return [torch_itself(report), cuda(report, environ), nccl(report), gloo(report)]


def torch_itself(report: Mapping[str, Any]) -> Finding:
    """torch is there, imports, and its version is one that forge is written for."""
    wanted, said = requirement("torch"), report.get("torch")
    install = INSTALL.format(range=wanted, python=sys.executable)
    if said is None:
        doing, end = report.get("doing", "starting"), report.get("end", "it said nothing")
        what = f"the process that imports torch came to a stop while {doing}: {end}."
        return missing(
            "torch",
            what,
            f"try `{sys.executable} -c 'import torch'`; if that fails too: {install}",
            needed=True,
        )
    if "error" in said:
        what = f"it cannot be imported: {said['error']}"
        return missing(
            "torch",
            what,
            install if "No module" in what else f"install it again: {install}",
            needed=True,
        )
    build = (
        f"for CUDA {said['cuda']}"
        if said["cuda"]
        else f"for ROCm {said['hip']}"
        if said["hip"]
        else "for the CPU"
    )
    found = f"{said['version']}, built {build}; CPU kernels: {said['cpu']}"
    if outside(said["version"], wanted):
        return missing("torch", f"{found}; forge needs {wanted}", install, needed=True)
    return ok("torch", found)


def cuda(report: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Finding:
    """Driver, GPUs, and whether torch can use them."""
    nvml, said, seen = report.get("nvml"), report.get("torch", {}), report.get("cuda")
    if nvml is None:
        what = f"the NVIDIA driver does not answer: {report.get('end', 'it said nothing')}."
        return warn("CUDA", what, f"restart the driver or the machine; {CUDA_ONLY}")
    if "error" in nvml and not (seen or {}).get("devices"):
        what = f"no NVIDIA driver that can be asked ({nvml['error']})"
        return missing("CUDA", what, f"install the driver (and nvidia-ml-py); {CUDA_ONLY}")
    driver = (
        f"driver {nvml['driver']} (CUDA {nvml['cuda']}), {_gpus(nvml['devices'])}"
        if "error" not in nvml
        else "a driver without NVML"
    )
    if "version" not in said:
        return warn("CUDA", f"{driver}; without torch no more is known", "see torch above")
    if not said["cuda"]:
        return warn(
            "CUDA", f"{driver}, and torch is built without CUDA", f"install {CUDA_BUILD}{CUDA_ONLY}"
        )
    if seen is None:
        what = f"{driver}; torch came to a stop while {report.get('doing')}: {report.get('end')}."
        return warn("CUDA", what, "run nvidia-smi; restart the driver")
    if "error" in seen:
        return warn(
            "CUDA",
            f"{driver}; a first computation fails: {seen['error']}",
            f"run nvidia-smi; install {CUDA_BUILD}{CUDA_ONLY}",
        )
    return _devices(driver, nvml.get("devices"), seen, environ)


def _devices(
    driver: str, count: int | None, seen: Mapping[str, Any], environ: Mapping[str, str]
) -> Finding:
    devices, visible = seen["devices"], environ.get("CUDA_VISIBLE_DEVICES")
    if not devices and visible is not None:
        return warn(
            "CUDA",
            f"{driver}; CUDA_VISIBLE_DEVICES={visible} hides them all",
            "unset CUDA_VISIBLE_DEVICES to use them",
        )
    if not devices:
        why = seen.get("warning", "no reason given")
        return warn(
            "CUDA",
            f"{driver}; torch sees none of them: {why}",
            f"update the driver, or install {CUDA_BUILD}{CUDA_ONLY}",
        )
    names = ", ".join(dict.fromkeys(f"{d['name']} (capability {d['capability']})" for d in devices))
    found = f"{driver}; torch uses {len(devices)}: {names}"
    if count is not None and len(devices) < count and visible is None:
        return warn("CUDA", found, "run nvidia-smi -L; a GPU in MIG mode or in error is left out")
    if not all(d["bf16"] for d in devices):
        return warn(
            "CUDA",
            f"{found}; no bf16",
            "precision=fp16 or precision=fp32; bf16 needs capability 8.0",
        )
    busy = [i for i, d in enumerate(devices) if d["free"] < 0.5 * d["total"]]
    if busy:
        return warn(
            "CUDA",
            f"{found}; more than half of the memory of {busy} is taken",
            "run nvidia-smi to see by whom",
        )
    return ok("CUDA", f"{found}; bf16")


def nccl(report: Mapping[str, Any]) -> Finding:
    """What ranks on GPUs talk through."""
    said, only = report.get("distributed"), "only needed for several GPUs"
    if said is None or "error" in said:
        return missing("NCCL", _silent(report), f"see torch above; {only}")
    if not said["nccl"]:
        return missing("NCCL", "this build of torch has none", f"install {CUDA_BUILD}{only}")
    return ok("NCCL", str(said["nccl_version"]))


def gloo(report: Mapping[str, Any]) -> Finding:
    """What ranks on the CPU talk through."""
    backends, started, only = (
        report.get("distributed"),
        report.get("gloo"),
        "only needed for several ranks on the CPU",
    )
    if backends is None or "error" in backends or started is None:
        return missing("gloo", _silent(report), f"see torch above; {only}")
    if not backends["gloo"]:
        return missing("gloo", "this build of torch has none", f"another build of torch; {only}")
    if "error" in started:
        fix = "give this host's name an address in /etc/hosts, or set GLOO_SOCKET_IFNAME to a network interface"
        return missing(
            "gloo", f"a group of one rank cannot be started: {started['error']}", f"{fix}; {only}"
        )
    return ok("gloo", "a group of one rank starts")


def _silent(report: Mapping[str, Any]) -> str:
    """Why nothing is known of torch.distributed."""
    errors = (report.get(step, {}).get("error") for step in ("torch", "distributed"))
    return (
        f"torch does not say ({next(filter(None, errors), report.get('end', 'it stopped early'))})"
    )


def _gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"
