"""A throw-away SLURM on the loopback: real daemons, pretend H100s, everything in one folder.

Debian's packages slurmctld, slurmd, slurm-client and munge, and root, are all it needs; several slurmd on one host are
its nodes. There is no accounting, so jobs are asked after with squeue. Memory and CPUs are scheduled, not enforced.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

ETC = Path("/etc/slurm")  # the only place a step's srun looks in: Snakemake strips SLURM_CONF from its environment
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol")

CONFIGURATION = """
ClusterName=pretend
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
MailProg=/bin/true
ReturnToService=2
KillWait={kill_wait}
MinJobAge=7200
OverTimeLimit=0
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SlurmdParameters=config_overrides
JobRequeue=1
GresTypes=gpu
{nodes}
PartitionName=h100 Nodes=ALL MaxTime=1-00:00:00 State=UP
PartitionName=cpu Nodes=ALL Default=YES MaxTime=1-00:00:00 State=UP
"""


class Cluster:
    """The cluster in `folder`; `start` and `stop` may be called again and again.

    Attributes:
        folder: everything the daemons write, their process ids and logs.
        nodes: names of the nodes.
        gpus: pretend H100s of a node.
    """

    def __init__(self, folder: Path, nodes: int = 2, gpus: int = 8, port: int = 16817, kill_wait: int = 5) -> None:
        self.folder, self.gpus, self.port, self.kill_wait = folder, gpus, port, kill_wait
        self.nodes = [f"pretend{number}" for number in range(nodes)]

    def start(self) -> None:
        """Write the configuration and start all daemons.

        Raises:
            RuntimeError: a program is missing, this machine has a SLURM of its own, or a daemon does not come up.
        """
        if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
            raise RuntimeError(f"{', '.join(missing)} not found: apt-get install slurmctld slurmd slurm-client munge")
        for name in ("slurm.conf", "gres.conf"):
            if (ETC / name).exists() and not (ETC / name).is_symlink():
                raise RuntimeError(f"{ETC / name} is a file of this machine's own SLURM, which is left alone")
        self._write()
        munge = [f"--{what}={self.folder}/munge.{what.split('-')[0]}" for what in ("key-file", "pid-file", "seed-file")]
        run("munged", "--force", f"--socket={self.folder}/munge.socket", f"--log-file={self.folder}/munge.log", *munge)
        self.start_controller("-c")  # without the state of a cluster before
        for node in self.nodes:
            run("slurmd", "-c", "-N", node)
        self.wait(lambda: self.states() == {"idle"}, "the nodes are not idle")

    def start_controller(self, *arguments: str) -> None:
        """Start slurmctld; it goes on with what its state folder has."""
        run("slurmctld", *arguments)
        self.wait(lambda: " is UP" in run("scontrol", "ping", check=False), "slurmctld does not answer")

    def kill_controller(self) -> None:
        """End slurmctld without a farewell."""
        self._end("slurmctld", signal.SIGKILL)

    def stop(self) -> None:
        """Cancel all jobs, end all daemons and take the configuration away."""
        with contextlib.suppress(OSError):
            run("scancel", "--state=PENDING", "--state=RUNNING", "--user=root", check=False)
        for name in [*self.nodes, "slurmctld", "munge"]:
            self._end(name, signal.SIGTERM)
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        for name in ("slurm.conf", "gres.conf"):
            if (ETC / name).is_symlink() and (ETC / name).readlink().parent == self.folder:
                (ETC / name).unlink()

    def processes(self) -> list[psutil.Process]:
        """Everything that runs for this cluster: its daemons, their steps, and jobs."""
        found = []
        for process in psutil.process_iter(["name", "cmdline"]):
            command = " ".join(process.info["cmdline"] or [])
            if process.info["name"] in ("slurmctld", "slurmd", "slurmstepd", "munged") or str(self.folder) in command:
                found.append(process)
        return [process for process in found if process.pid != os.getpid()]

    def states(self) -> set[str]:
        """States of the nodes."""
        return set(run("sinfo", "--noheader", "--Node", "--format=%T", check=False).split())

    def jobs(self) -> list[dict[str, str]]:
        """Every job so far, the oldest first: id, state, partition, comment (rule and wildcards), and the GPUs it asked for."""
        columns = {
            "id": "JobID",
            "state": "State",
            "partition": "Partition",
            "gpus": "tres-per-job",
            "comment": "Comment",
        }
        form = ",".join(f"{column}:200" for column in columns.values())
        lines = run("squeue", "--noheader", "--states=all", f"--Format={form}").splitlines()
        rows = [[line[200 * i : 200 * (i + 1)].strip() for i in range(len(columns))] for line in lines]
        return sorted((dict(zip(columns, row, strict=True)) for row in rows), key=lambda job: int(job["id"]))

    def job(self, number: str) -> dict[str, str]:
        """What scontrol knows of a job."""
        words = run("scontrol", "--oneliner", "--detail", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, until: Callable[[], object], otherwise: str, seconds: float = 60) -> None:
        """Wait until something holds.

        Raises:
            RuntimeError: it does not within `seconds`; the message has the ends of the logs.
        """
        deadline = time.monotonic() + seconds
        while not until():
            if time.monotonic() > deadline:
                logs = [f"{log.name}: {log.read_text()[-1500:]}" for log in self.folder.glob("*.log")]
                raise RuntimeError("\n".join([f"{otherwise} after {seconds:.0f} seconds", *logs]))
            time.sleep(0.1)

    def _write(self) -> None:
        for part in ("state", "spool", "devices"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        key = self.folder / "munge.key"
        if not key.exists():
            key.write_bytes(secrets.token_bytes(128))
            key.chmod(0o400)
        for number in range(self.gpus):  # slurmd wants a device for each GPU; a plain file will do
            (self.folder / "devices" / f"nvidia{number}").touch()
        host = socket.gethostname().split(".")[0]
        lines = [
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={self.port + 1 + number} CPUs=128 "
            f"RealMemory=1000000 Gres=gpu:h100:{self.gpus} State=UNKNOWN"
            for number, node in enumerate(self.nodes)
        ]
        values = {"host": host, "port": self.port, "folder": self.folder, "kill_wait": self.kill_wait}
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(nodes="\n".join(lines), **values))
        device = f"{self.folder}/devices/nvidia[0-{self.gpus - 1}]"
        gpus = [f"NodeName={node} Name=gpu Type=h100 File={device}" for node in self.nodes]
        (self.folder / "gres.conf").write_text("\n".join(["AutoDetect=off", *gpus, ""]))
        ETC.mkdir(exist_ok=True)
        for name in ("slurm.conf", "gres.conf"):
            (ETC / name).unlink(missing_ok=True)
            (ETC / name).symlink_to(self.folder / name)

    def _end(self, name: str, number: int) -> None:
        file = self.folder / f"{name}.pid"
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            process = psutil.Process(int(file.read_text()))
            process.send_signal(number)
            process.wait(20)


@contextlib.contextmanager
def running(folder: Path, **settings: int) -> Iterator[Cluster]:
    """A cluster that is gone afterwards, whatever happens."""
    cluster = Cluster(folder, **settings)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def run(*command: str, check: bool = True) -> str:
    """What a program prints."""
    done = subprocess.run(command, capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr or done.stdout}")
    return done.stdout
