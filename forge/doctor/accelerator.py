"""torch, CUDA, NCCL and gloo, from the report of the probe process."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from forge.doctor.finding import Finding, missing, ok, run_program, warn
from forge.doctor.software import outside, requirements

RESTART = "run nvidia-smi; restart the driver"
CUDA_ONLY = "only needed for run.device=cuda"
CUDA_BUILD = "a CUDA build of torch, as pytorch.org/get-started has it for this driver; "
HOST_NAME = (
    "give this host's name an address in /etc/hosts, or set GLOO_SOCKET_IFNAME to a network "
    "interface"
)


def probe(seconds: float = 60.0) -> dict[str, Any]:
    """The report of `forge.doctor.torch_probe`; `doing` and `end` tell of an early end."""
    answer = run_program([sys.executable, "-m", "forge.doctor.torch_probe"], seconds=seconds)
    if answer is None:
        return {"end": "could not be started"}
    report: dict[str, Any] = {}
    for line in answer.out.splitlines():
        with contextlib.suppress(ValueError, TypeError):  # a library may print too
            report |= json.loads(line)
    if answer.code is None:
        report["end"] = f"no answer in {seconds:g} s"
    elif answer.code:
        report["end"] = f"ended with {answer.code}: {answer.last_line}"
    return report


def findings(report: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> list[Finding]:
    return [torch(report), cuda(report, environ), *mps(report), *backends(report)]


def torch(report: Mapping[str, Any]) -> Finding:
    versions, section = requirements().get("torch", ""), report.get("torch")
    hint = f"pip install 'torch{versions}' in the environment of {sys.executable}"
    if section is None:
        doing, end = report.get("doing", "starting"), report.get("end", "it said nothing")
        message = f"the process that imports torch came to a stop while {doing}: {end}."
        hint = f"try `{sys.executable} -c 'import torch'`; if that fails too: {hint}"
    elif "error" in section:
        message = f"it cannot be imported: {section['error']}"
        hint = hint if "No module" in message else f"install it again: {hint}"
    else:
        kinds = {"CUDA": section["cuda"], "ROCm": section["hip"]}
        build = next((f"{kind} {v}" for kind, v in kinds.items() if v), "the CPU")
        message = f"{section['version']}, built for {build}; CPU kernels: {section['cpu']}"
        if not outside(section["version"], versions):
            return ok("torch", message)
        message = f"{message}; forge needs {versions}"
    return missing("torch", message, hint, needed=True)


def cuda(report: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Finding:
    nvml, torch_report, seen = report.get("nvml"), report.get("torch", {}), report.get("cuda")
    end, devices = report.get("end", "it said nothing"), (seen or {}).get("devices", ())
    if nvml is None:
        message = f"the NVIDIA driver does not answer: {end}."
        return warn("CUDA", message, f"restart the driver or the machine; {CUDA_ONLY}")
    count, driver = nvml.get("devices"), "a driver without NVML"
    if "error" not in nvml:
        gpus = f"{count} GPU{'' if count == 1 else 's'}"
        driver = f"driver {nvml['driver']} (CUDA {nvml['cuda']}), {gpus}"
    elif not devices:
        message = f"no NVIDIA driver that can be asked ({nvml['error']})"
        return missing("CUDA", message, f"install the driver (and nvidia-ml-py); {CUDA_ONLY}")
    message, hint, visible = (
        "",
        f"install {CUDA_BUILD}{CUDA_ONLY}",
        environ.get("CUDA_VISIBLE_DEVICES"),
    )
    if "version" not in torch_report:
        message, hint = "without torch no more is known", "see torch above"
    elif not torch_report["cuda"]:
        message = "torch is built without CUDA"
    elif seen is None:
        message, hint = f"torch came to a stop while {report.get('doing')}: {end}.", RESTART
    elif "error" in seen:
        message, hint = f"a first computation fails: {seen['error']}", f"run nvidia-smi; {hint}"
    elif not devices and visible is not None:
        message = f"CUDA_VISIBLE_DEVICES={visible} hides them all"
        hint = "unset CUDA_VISIBLE_DEVICES to use them"
    elif not devices:
        message = f"torch sees none of them: {seen.get('warning', 'no reason given')}"
        hint = f"update the driver, or {hint}"
    if message:
        return warn("CUDA", f"{driver}; {message}", hint)
    names = dict.fromkeys(f"{d['name']} (capability {d['capability']})" for d in devices)
    summary = f"{driver}; torch uses {len(devices)}: {', '.join(names)}"
    if count is not None and len(devices) < count and visible is None:
        return warn("CUDA", summary, "run nvidia-smi -L; a GPU in MIG mode or in error is left out")
    if not all(device["bf16"] for device in devices):
        hint = "precision=fp16 or precision=fp32; bf16 needs capability 8.0"
        return warn("CUDA", f"{summary}; no bf16", hint)
    busy = [i for i, device in enumerate(devices) if device["free"] < device["total"] / 2]
    if busy:
        message = f"{summary}; more than half of the memory of {busy} is taken"
        return warn("CUDA", message, "run nvidia-smi to see by whom")
    return ok("CUDA", f"{summary}; bf16")


def mps(report: Mapping[str, Any]) -> list[Finding]:
    """Whether the GPU of Apple silicon is usable, where torch is built with MPS."""
    usable = report.get("torch", {}).get("mps")
    if usable is None:
        return []
    if usable:
        return [ok("MPS", "torch can use the Apple GPU with run.device=mps, in fp32")]
    message = "torch is built for an Apple GPU and finds none that it can use"
    return [warn("MPS", message, "a newer macOS on Apple silicon; only needed for run.device=mps")]


def backends(report: Mapping[str, Any]) -> list[Finding]:
    """The backends for communication between ranks: NCCL on GPUs, gloo on the CPU."""
    support, group = report.get("distributed"), report.get("gloo")
    gpus = "only needed for several GPUs"
    cpu = "only needed for several ranks on the CPU"
    errors = (report.get(step, {}).get("error") for step in ("torch", "distributed"))
    why = next(filter(None, errors), report.get("end", "it stopped early"))
    nccl = missing("NCCL", f"torch does not say ({why})", f"see torch above; {gpus}")
    gloo = missing("gloo", f"torch does not say ({why})", f"see torch above; {cpu}")
    if support is None or "error" in support:
        return [nccl, gloo]
    absent = "this build of torch has none"
    nccl = missing("NCCL", absent, f"install {CUDA_BUILD}{gpus}")
    if support["nccl"]:
        nccl = ok("NCCL", str(support["nccl_version"]))
    if not support["gloo"]:
        gloo = missing("gloo", absent, f"another build of torch; {cpu}")
    elif group is not None:
        gloo = ok("gloo", "a group of one rank starts")
        if "error" in group:
            message = f"a group of one rank cannot be started: {group['error']}"
            gloo = missing("gloo", message, f"{HOST_NAME}; {cpu}")
    return [nccl, gloo]
