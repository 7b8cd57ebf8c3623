"""Running code that nobody has read: a process of its own with limits, without network or files.

    ran = run_python("print(6 * 7)")
    ran.passed, ran.stdout, ran.not_isolated

Torch-free, and without privileges. Namespaces, Landlock and seccomp are used where the system has
them; `not_isolated` names what none of them could cover. A model's code is careless rather than
hostile: against an attacker with an unknown flaw of the kernel, take a virtual machine as well.
"""

from forge.sandbox.run import ProgramResult, SandboxLimits, run_python

__all__ = ["ProgramResult", "SandboxLimits", "run_python"]
