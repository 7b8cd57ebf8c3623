"""torch, CUDA, NCCL and gloo, from what the probe process said."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from forge.doctor.finding import Finding, ask, missing, ok, warn
from forge.doctor.software import outside, requirements

RESTART = "run nvidia-smi; restart the driver"
CUDA_ONLY = "only needed for run.device=cuda"
CUDA_BUILD = "a CUDA build of torch, as pytorch.org/get-started has it for this driver; "
HOST_NAME = (
    "give this host's name an address in /etc/hosts, or set GLOO_SOCKET_IFNAME to a network "
    "interface"
)


def probe(seconds: float = 60.0) -> dict[str, Any]:
    """What `forge.doctor.torch_probe` says; `doing` and `end` tell where and how it ended early."""
    answer = ask([sys.executable, "-m", "forge.doctor.torch_probe"], seconds=seconds)
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
    wanted, said = requirements().get("torch", ""), report.get("torch")
    fix = f"pip install 'torch{wanted}' in the environment of {sys.executable}"
    if said is None:
        doing, end = report.get("doing", "starting"), report.get("end", "it said nothing")
        what = f"the process that imports torch came to a stop while {doing}: {end}."
        fix = f"try `{sys.executable} -c 'import torch'`; if that fails too: {fix}"
    elif "error" in said:
        what = f"it cannot be imported: {said['error']}"
        fix = fix if "No module" in what else f"install it again: {fix}"
    else:
        kinds = {"CUDA": said["cuda"], "ROCm": said["hip"]}
        build = next((f"{kind} {v}" for kind, v in kinds.items() if v), "the CPU")
        what = f"{said['version']}, built for {build}; CPU kernels: {said['cpu']}"
        if not outside(said["version"], wanted):
            return ok("torch", what)
        what = f"{what}; forge needs {wanted}"
    return missing("torch", what, fix, needed=True)


def cuda(report: Mapping[str, Any], environ: Mapping[str, str] = os.environ) -> Finding:
    nvml, said, seen = report.get("nvml"), report.get("torch", {}), report.get("cuda")
    end, devices = report.get("end", "it said nothing"), (seen or {}).get("devices", ())
    if nvml is None:
        what = f"the NVIDIA driver does not answer: {end}."
        return warn("CUDA", what, f"restart the driver or the machine; {CUDA_ONLY}")
    count, driver = nvml.get("devices"), "a driver without NVML"
    if "error" not in nvml:
        gpus = f"{count} GPU{'' if count == 1 else 's'}"
        driver = f"driver {nvml['driver']} (CUDA {nvml['cuda']}), {gpus}"
    elif not devices:
        what = f"no NVIDIA driver that can be asked ({nvml['error']})"
        return missing("CUDA", what, f"install the driver (and nvidia-ml-py); {CUDA_ONLY}")
    what, fix, visible = "", f"install {CUDA_BUILD}{CUDA_ONLY}", environ.get("CUDA_VISIBLE_DEVICES")
    if "version" not in said:
        what, fix = "without torch no more is known", "see torch above"
    elif not said["cuda"]:
        what = "torch is built without CUDA"
    elif seen is None:
        what, fix = f"torch came to a stop while {report.get('doing')}: {end}.", RESTART
    elif "error" in seen:
        what, fix = f"a first computation fails: {seen['error']}", f"run nvidia-smi; {fix}"
    elif not devices and visible is not None:
        what = f"CUDA_VISIBLE_DEVICES={visible} hides them all"
        fix = "unset CUDA_VISIBLE_DEVICES to use them"
    elif not devices:
        what = f"torch sees none of them: {seen.get('warning', 'no reason given')}"
        fix = f"update the driver, or {fix}"
    if what:
        return warn("CUDA", f"{driver}; {what}", fix)
    names = dict.fromkeys(f"{d['name']} (capability {d['capability']})" for d in devices)
    found = f"{driver}; torch uses {len(devices)}: {', '.join(names)}"
    if count is not None and len(devices) < count and visible is None:
        return warn("CUDA", found, "run nvidia-smi -L; a GPU in MIG mode or in error is left out")
    if not all(device["bf16"] for device in devices):
        fix = "precision=fp16 or precision=fp32; bf16 needs capability 8.0"
        return warn("CUDA", f"{found}; no bf16", fix)
    busy = [i for i, device in enumerate(devices) if device["free"] < device["total"] / 2]
    if busy:
        what = f"{found}; more than half of the memory of {busy} is taken"
        return warn("CUDA", what, "run nvidia-smi to see by whom")
    return ok("CUDA", f"{found}; bf16")


def mps(report: Mapping[str, Any]) -> list[Finding]:
    """Whether the GPU of Apple silicon can be used, where torch is built for one."""
    there = report.get("torch", {}).get("mps")
    if there is None:
        return []
    if there:
        return [ok("MPS", "torch can use the Apple GPU with run.device=mps, in fp32")]
    what = "torch is built for an Apple GPU and finds none that it can use"
    return [warn("MPS", what, "a newer macOS on Apple silicon; only needed for run.device=mps")]


def backends(report: Mapping[str, Any]) -> list[Finding]:
    """What ranks communicate through: NCCL on GPUs, gloo on the CPU."""
    said, group = report.get("distributed"), report.get("gloo")
    gpus = "only needed for several GPUs"
    cpu = "only needed for several ranks on the CPU"
    errors = (report.get(step, {}).get("error") for step in ("torch", "distributed"))
    why = next(filter(None, errors), report.get("end", "it stopped early"))
    nccl = missing("NCCL", f"torch does not say ({why})", f"see torch above; {gpus}")
    gloo = missing("gloo", f"torch does not say ({why})", f"see torch above; {cpu}")
    if said is None or "error" in said:
        return [nccl, gloo]
    none = "this build of torch has none"
    nccl = missing("NCCL", none, f"install {CUDA_BUILD}{gpus}")
    if said["nccl"]:
        nccl = ok("NCCL", str(said["nccl_version"]))
    if not said["gloo"]:
        gloo = missing("gloo", none, f"another build of torch; {cpu}")
    elif group is not None:
        gloo = ok("gloo", "a group of one rank starts")
        if "error" in group:
            what = f"a group of one rank cannot be started: {group['error']}"
            gloo = missing("gloo", what, f"{HOST_NAME}; {cpu}")
    return [nccl, gloo]
