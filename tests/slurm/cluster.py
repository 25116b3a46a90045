"""A throw-away SLURM on the loopback: real daemons, pretend H100s, everything in one folder.

Debian's packages slurmctld, slurmd, slurmdbd, slurm-client, munge and mariadb-server, and root, are all it needs; several
slurmd on one host are its nodes. Accounting is real too: Snakemake asks it after jobs. Memory and CPUs are scheduled, not
enforced. Jobs that get a pretend GPU compute on the processor, which they refuse but for the variable SWIFTKV_PRETEND_GPUS in
their environment; `Workflow` in conftest.py sets it.
"""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import psutil
from tests.programs import alive

ETC = Path("/etc/slurm")  # the only place a step's srun looks in: Snakemake strips SLURM_CONF from its environment
FILES = ("slurm.conf", "gres.conf", "slurmdbd.conf")
PROGRAMS = ("munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd", "sbatch", "sacct", "scontrol")
DAEMONS = ("slurmctld", "slurmd", "slurmdbd", "slurmstepd", "munged")
PACKAGES = "slurmctld slurmd slurmdbd slurm-client munge mariadb-server"
ACCOUNT = "swiftkv"  # the one of profiles/slurm
NODES, GPUS, PORT = ("pretend0", "pretend1"), 8, 16817

DATABASE = """
create database if not exists accounting;
create user if not exists slurm@'127.0.0.1' identified by 'slurm';
grant all on accounting.* to slurm@'127.0.0.1';
"""


class Cluster:
    """The cluster in `folder`, where all that its daemons write is, their process ids and logs."""

    def __init__(self, folder):
        self.folder = folder

    def start(self):
        if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
            raise RuntimeError(f"{', '.join(missing)} not found: apt-get install {PACKAGES}")
        for name in FILES:
            if (ETC / name).exists() and not (ETC / name).is_symlink():
                raise RuntimeError(f"{ETC / name} is a file of this machine's own SLURM, which is left alone")
        self._write()
        munge = [f"--{what}={self.folder}/munge.{what.split('-')[0]}" for what in ("key-file", "pid-file", "seed-file")]
        run("munged", "--force", f"--socket={self.folder}/munge.socket", f"--log-file={self.folder}/munge.log", *munge)
        self._start_accounting()
        self.start_controller("-c")  # without the state of a cluster before
        for node in NODES:
            run("slurmd", "-c", "-N", node)
        self.wait(lambda: self.states() == {"idle"}, "the nodes are not idle")

    def start_controller(self, *arguments):
        """Start slurmctld; it goes on with what its state folder has."""
        run("slurmctld", *arguments)
        self.wait(lambda: " is UP" in run("scontrol", "ping", check=False), "slurmctld does not answer")

    def kill_controller(self):
        self._end("slurmctld", signal.SIGKILL)

    def stop(self):
        """Cancel all jobs, end all daemons and take the configuration away."""
        with contextlib.suppress(OSError):
            run("scancel", "--state=PENDING", "--state=RUNNING", "--user=root", check=False)
        for name in [*NODES, "slurmctld", "slurmdbd", "database", "munge"]:
            self._end(name, signal.SIGTERM)
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        for name in FILES:
            if (ETC / name).is_symlink() and (ETC / name).readlink().parent == self.folder:
                (ETC / name).unlink()

    def processes(self):
        found = []
        for process in psutil.process_iter(["name", "cmdline", "status"]):
            if process.info["status"] == psutil.STATUS_ZOMBIE:  # has ended; in a container nobody may ask how
                continue
            command = " ".join(process.info["cmdline"] or [])
            if process.info["name"] in DAEMONS or str(self.folder) in command:
                found.append(process)
        # A daemon may have ended since the list was taken.
        return [process for process in found if process.pid != os.getpid() and alive(process.pid)]

    def states(self):
        return set(run("sinfo", "--noheader", "--Node", "--format=%T", check=False).split())

    def jobs(self):
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

    def job(self, number):
        words = run("scontrol", "--oneliner", "--detail", "show", "job", number).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait(self, until, otherwise, seconds=60):
        """Wait until something holds; else the error has the ends of the logs."""
        deadline = time.monotonic() + seconds
        while not until():
            if time.monotonic() > deadline:
                logs = [f"{log.name}: {log.read_text()[-1500:]}" for log in self.folder.glob("*.log")]
                raise RuntimeError("\n".join([f"{otherwise} after {seconds:.0f} seconds", *logs]))
            time.sleep(0.1)

    def _start_accounting(self):
        database, socket = self.folder / "database", f"--socket={self.folder}/database.socket"
        if not database.exists():
            run("mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={database}", "--skip-test-db",
                "--auth-root-authentication-method=normal")  # fmt: skip
        with (self.folder / "database.log").open("ab") as log:
            subprocess.Popen(
                ["mariadbd", "--no-defaults", "--user=root", f"--datadir={database}", socket, "--bind-address=127.0.0.1",
                 f"--pid-file={self.folder}/database.pid", f"--port={PORT + 99}", "--skip-log-bin",
                 "--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        client = ["mariadb", "--no-defaults", "--user=root", socket, "--execute"]
        self.wait(lambda: subprocess.run([*client, "select 1"], capture_output=True).returncode == 0, "no database")
        run(*client, DATABASE)
        run("slurmdbd")
        self.wait(lambda: "pretend" in self._accounts(), "slurmdbd does not answer")

    def _accounts(self):
        for words in ("cluster pretend", f"account {ACCOUNT}", f"user root account={ACCOUNT}"):
            run("sacctmgr", "--immediate", "add", *words.split(), check=False)
        return run("sacctmgr", "--noheader", "list", "cluster", check=False)

    def _write(self):
        for part in ("state", "spool", "devices"):
            (self.folder / part).mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        key = self.folder / "munge.key"
        if not key.exists():
            key.write_bytes(secrets.token_bytes(128))
            key.chmod(0o400)
        for number in range(GPUS):  # slurmd wants a device for each GPU; a plain file will do
            (self.folder / "devices" / f"nvidia{number}").touch()
        host = socket.gethostname().split(".")[0]
        lines = [
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={PORT + 1 + number} CPUs=128 "
            f"RealMemory=1000000 Gres=gpu:h100:{GPUS} State=UNKNOWN"
            for number, node in enumerate(NODES)
        ]
        values = {"host": host, "port": PORT, "folder": self.folder}
        values |= {"accounting_port": PORT + 98, "database_port": PORT + 99}
        values |= {"nodes": "\n".join(lines)}
        for name in ("slurm.conf", "slurmdbd.conf"):
            (self.folder / name).write_text(Path(__file__).with_name(name).read_text().format(**values))
        (self.folder / "slurmdbd.conf").chmod(0o600)
        device = f"{self.folder}/devices/nvidia[0-{GPUS - 1}]"
        gpus = [f"NodeName={node} Name=gpu Type=h100 File={device}" for node in NODES]
        (self.folder / "gres.conf").write_text("\n".join(["AutoDetect=off", *gpus, ""]))
        ETC.mkdir(exist_ok=True)
        for name in FILES:
            (ETC / name).unlink(missing_ok=True)
            (ETC / name).symlink_to(self.folder / name)

    def _end(self, name, number):
        file = self.folder / f"{name}.pid"
        with contextlib.suppress(OSError, ValueError, psutil.Error):
            process = psutil.Process(int(file.read_text()))
            process.send_signal(number)
            process.wait(20)


@contextlib.contextmanager
def running(folder):
    """A cluster that is gone afterwards, whatever happens."""
    cluster = Cluster(folder)

    def end(number, frame):  # as `timeout` asks for it; the default leaves everything running
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        cluster.start()
        yield cluster
    finally:
        signal.signal(signal.SIGTERM, before)
        cluster.stop()


def run(*command, check=True):
    done = subprocess.run(command, capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr or done.stdout}")
    return done.stdout
