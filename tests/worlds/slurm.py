"""A one-node SLURM cluster by hand, for the tests and for trying the profile on one machine.

    python tests/worlds/slurm.py snakemake --profile profiles/slurm --configfile config/demo.yaml

starts munged, slurmctld and slurmd on the loopback interface with a configuration and a state of
their own (nothing under /etc is read or written), runs the command, and ends what it started, by
process id. The node claims more CPUs, memory and GPUs than the machine has (`config_overrides`;
the GPUs are /dev/null), so that requests of a real size are scheduled. Needs root, and Debian's
packages slurm-wlm and munge: installed by apt when they are missing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "srun", "scancel", "sinfo")
CPUS, MEMORY_MB, GPUS = 64, 400_000, 4
SECONDS_TO_START = 30.0

CONFIG = """
ClusterName=onenode
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,defer_batch
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
# A finished job must still be listed when its state is asked for.
MinJobAge=300
InactiveLimit=0
KillWait=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} Gres=gpu:{gpus} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=gpu Nodes=ALL MaxTime=INFINITE State=UP
"""


class CannotStartError(RuntimeError):
    """Why no cluster can be started here."""


def install() -> None:
    """Install what is missing, where that is allowed; raises CannotStartError with the reason."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if os.geteuid() != 0:
        raise CannotStartError("a SLURM cluster by hand needs root")
    if not missing:
        return
    if shutil.which("apt-get") is None:
        raise CannotStartError(f"{', '.join(missing)} are missing and there is no apt-get")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    packages = ["install", "--yes", "--no-install-recommends", "slurm-wlm", "munge"]
    for arguments in (["update"], packages):
        ended = subprocess.run(
            ["apt-get", *arguments], env=environment, timeout=300, check=False, **quiet
        )
    if ended.returncode != 0:
        raise CannotStartError(f"apt-get could not install SLURM: {ended.stderr.strip()[-200:]}")


@contextlib.contextmanager
def one_node_slurm(folder: Path) -> Iterator[dict[str, str]]:
    """Start a cluster with its state in `folder`; yields the environment that reaches it.

    Raises CannotStartError with the reason when it does not come up.
    """
    install()
    environment = _configure(folder)
    daemons = {
        "munged": ["--force", *_munge_options(folder)],
        "slurmctld": ["-c", "-f", str(folder / "slurm.conf")],
        "slurmd": ["-f", str(folder / "slurm.conf")],
    }
    with contextlib.ExitStack() as stack:
        for name, arguments in daemons.items():
            ended = subprocess.run(
                [name, *arguments], capture_output=True, text=True, timeout=60, check=False
            )
            stack.callback(_end, folder / f"{name}.pid")
            if ended.returncode != 0:
                raise CannotStartError(f"{name} did not start: {ended.stderr.strip()[-300:]}")
        _wait_until_idle(folder, environment)
        stack.callback(_run, ["scancel", "--partition=main,gpu"], environment)
        yield environment


def _configure(folder: Path) -> dict[str, str]:
    for name in ("state", "spool", "log", "bin"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    # munged insists that only its own user can write to its folders.
    (folder / "munge").mkdir(mode=0o700, exist_ok=True)
    key = folder / "munge/key"
    key.touch(mode=0o600)
    key.write_bytes(os.urandom(1024))
    host, config = socket.gethostname().split(".")[0], folder / "slurm.conf"
    config.write_text(
        CONFIG.format(
            folder=folder, host=host, ports=_free_ports(), cpus=CPUS, memory=MEMORY_MB, gpus=GPUS
        )
    )
    fake = folder / "fake_gpus"
    fake.mkdir(exist_ok=True)
    for number in range(GPUS):  # a device of its own for each, or SLURM refuses the duplicates
        with contextlib.suppress(FileExistsError):
            (fake / f"gpu{number}").symlink_to("/dev/null")
    (folder / "gres.conf").write_text(f"NodeName={host} Name=gpu File={fake}/gpu[0-{GPUS - 1}]\n")
    # Snakemake's plugin runs its inner `srun` without any SLURM_* variable, so also without the
    # path of this configuration; a wrapper puts it back.
    wrapper = folder / "bin/srun"
    wrapper.write_text(f"#!/bin/sh\nSLURM_CONF='{config}' exec {shutil.which('srun')} \"$@\"\n")
    wrapper.chmod(0o755)
    return {
        **os.environ,
        "SLURM_CONF": str(config),
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }


def _munge_options(folder: Path) -> list[str]:
    munge = folder / "munge"
    return [
        f"--key-file={munge / 'key'}",
        f"--socket={munge / 'socket'}",
        f"--log-file={munge / 'munged.log'}",
        f"--seed-file={munge / 'seed'}",
        f"--pid-file={folder / 'munged.pid'}",
    ]


def _free_ports() -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(2)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _run(command: list[str], environment: dict[str, str]) -> str:
    ended = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=30, check=False
    )
    return ended.stdout


def _wait_until_idle(folder: Path, environment: dict[str, str]) -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < deadline:
        states = _run(["sinfo", "--noheader", "--format=%T"], environment).split()
        if states and set(states) == {"idle"}:
            return
        time.sleep(0.2)
    logs = "".join(file.read_text()[-300:] for file in (folder / "log").glob("*.log"))
    raise CannotStartError(f"the node did not become idle (its state: {states}): {logs}")


def _end(pid_file: Path) -> None:
    """TERM, and KILL after ten seconds, for the process whose id the daemon wrote."""
    try:
        pid = int(pid_file.read_text())
    except (OSError, ValueError):
        return
    for sent, patience in ((signal.SIGTERM, 10.0), (signal.SIGKILL, 2.0)):
        deadline = time.monotonic() + patience
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sent)
            while time.monotonic() < deadline:
                os.kill(pid, 0)
                time.sleep(0.05)
            continue
        return


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder:
        try:
            with one_node_slurm(Path(folder)) as environment:
                return subprocess.run(sys.argv[1:], env=environment, check=False).returncode
        except CannotStartError as error:
            sys.exit(f"No SLURM here: {error}.")


if __name__ == "__main__":
    sys.exit(main())
