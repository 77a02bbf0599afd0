"""A Slurm cluster of one machine: munge, controller and node daemon in a temporary folder.

A requeued job is held back until the credentials of its former life have expired
(cred_expire, two minutes unless set).

Nothing of the machine's own configuration is read or written. Needs root, as slurmd does.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from rallypoint.net.addresses import free_port

CONF = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmdPort={slurmd_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={at}/munge.socket,cred_expire=5
CredType=cred/munge
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
StateSaveLocation={at}/state
SlurmdSpoolDir={at}/spool
SlurmctldPidFile={at}/slurmctld.pid
SlurmdPidFile={at}/slurmd.pid
SlurmctldLogFile={at}/slurmctld.log
SlurmdLogFile={at}/slurmd.log
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,batch_sched_delay=0
JobRequeue=1
KillWait=20
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
READY_SECONDS = 60.0


class Cluster:
    """The running cluster; `env` is what its commands need."""

    def __init__(self) -> None:
        self.at = Path(tempfile.mkdtemp(prefix="rally-slurm-", dir="/tmp"))  # short: sockets
        self.env = {**os.environ, "SLURM_CONF": str(self.at / "slurm.conf")}
        self._daemons: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        for folder in ("state", "spool"):
            (self.at / folder).mkdir()
        host = socket.gethostname().split(".")[0]
        ports = {"ctld_port": free_port("127.0.0.1"), "slurmd_port": free_port("127.0.0.1")}
        conf = CONF.format(at=self.at, host=host, **ports)
        (self.at / "slurm.conf").write_text(conf)
        key = self.at / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        self.at.chmod(0o755)
        names = ("socket", "pid", "log", "seed")
        files = [f"--{name}-file={self.at}/munge.{name}" for name in names[1:]]
        socket_at = f"--socket={self.at}/munge.socket"
        self._daemon("munged", "--foreground", "--force", f"--key-file={key}", socket_at, *files)
        self._until(lambda: (self.at / "munge.socket").exists(), "munged")
        self._daemon("slurmctld", "-D")
        self._daemon("slurmd", "-D", "-N", "localhost")
        self._until(lambda: "idle" in self.run("sinfo", "-h", "-o", "%T", check=False), "sinfo")

    def _daemon(self, name: str, *options: str) -> None:
        program = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
        assert program is not None, f"{name} is not installed"
        with (self.at / f"{name}.out").open("wb") as out:
            daemon = subprocess.Popen(
                [program, *options], env=self.env, stdout=out, stderr=out, start_new_session=True
            )
        self._daemons.append(daemon)

    def _until(self, condition: "object", what: str) -> None:
        assert callable(condition)
        end = time.monotonic() + READY_SECONDS
        while not condition():
            if time.monotonic() > end:
                logs = [f"{file}:\n{file.read_text()}" for file in self.at.glob("*.out")]
                raise AssertionError(f"{what} not within {READY_SECONDS:g} s\n" + "\n".join(logs))
            time.sleep(0.1)

    def run(self, *command: str, check: bool = True, timeout: float = 60) -> str:
        done = subprocess.run(
            command, env=self.env, capture_output=True, text=True, timeout=timeout, check=False
        )
        assert done.returncode == 0 or not check, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def stop(self) -> None:
        if len(self._daemons) == 3:
            self.run("scancel", "-u", "root", check=False)
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        shutil.rmtree(self.at, ignore_errors=True)
