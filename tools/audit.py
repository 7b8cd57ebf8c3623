"""Known faults of what is installed: python tools/audit.py [IGNORED ...].

Ends with 1 where pip-audit finds a vulnerability that is not among those ignored, or fails by
itself. Where its data base cannot be reached, or knows nothing, a line says so and it ends with 0.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PIP = ("pip", "install", "--quiet", "--disable-pip-version-check", "pip-audit")
AUDIT = ("pip_audit", "--local", "--skip-editable", "--progress-spinner=off", "--format=json")
# What pip-audit, requests and urllib3 say of a service that does not answer.
UNREACHED = ("Could not connect", "is not redirecting properly", "ServiceError")
UNREACHED += ("ConnectionError", "ConnectTimeout", "ReadTimeout", "NewConnectionError")


def main(ignored: Sequence[str]) -> int:
    if importlib.util.find_spec("pip_audit") is None and (failed := _python(*PIP)).returncode:
        return _passed_over(f"pip-audit cannot be installed ({_last_line(failed.stderr)})")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "audit.json")
        options = [f"--ignore-vuln={name}" for name in ignored]
        audit = _python(*AUDIT, f"--output={file}", *options)
        if not file.is_file():
            if any(words in audit.stderr for words in UNREACHED):
                why = f"its data base cannot be reached ({_last_line(audit.stderr)})"
                return _passed_over(why)
            print(audit.stderr, file=sys.stderr)
            return audit.returncode or 1
        packages: list[dict[str, Any]] = json.loads(file.read_text("utf-8"))["dependencies"]
    unknown = [package["name"] for package in packages if "skip_reason" in package]
    if packages and len(unknown) == len(packages):
        return _passed_over(f"its data base knows none of {len(packages)} packages")
    found = 0
    for package in packages:
        for fault in package.get("vulns", ()):
            found += 1
            fixes = ", ".join(fault["fix_versions"]) or "no version yet"
            names = " ".join([fault["id"], *fault.get("aliases", ())])
            print(f"{package['name']} {package['version']}: {names}; mended in {fixes}")
    if unknown:
        print(f"audit: not looked at, since the data base does not know them: {', '.join(unknown)}")
    left_out = f", {', '.join(ignored)} left out" if ignored else ""
    looked = len(packages) - len(unknown)
    print(f"audit: {found} known vulnerabilities in {looked} packages{left_out}")
    return int(found > 0)


def _python(*module: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", *module], capture_output=True, text=True)


def _last_line(said: str) -> str:
    return next((line for line in reversed(said.splitlines()) if line.strip()), "it says nothing")


def _passed_over(why: str) -> int:
    print(f"audit: skipped, nothing was looked at: {why}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
