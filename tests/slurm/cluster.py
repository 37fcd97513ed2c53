"""A private Slurm cluster on this machine: munged, slurmctld and some slurmds, in a temporary folder.

It does not use or touch the system's Slurm: key, socket, ports, spool, state and logs are the cluster's own. All its
processes (daemons, job steps and ranks) are descendants of one keeper process, which kills them and removes the folder
when the test closes its pipe or dies in any way. Standard library only.
"""

import ctypes
import json
import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "mpi"))
from harness import Failure, check, runs, wait_for

PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch", "scontrol", "scancel", "squeue", "sinfo", "srun")
SEARCH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", "/sbin"])
START_LIMIT = 90.0
# Folders in which the daemons would leave files if one of our settings did not reach them.
SYSTEM_FOLDERS = ("/run", "/var/run", "/var/spool", "/var/log", "/var/lib", "/var/tmp", "/tmp", "/dev/shm", "/etc")


def missing_programs():
    return [name for name in PROGRAMS if not shutil.which(name, path=SEARCH)]


# Nodes have more processors than the machine, so that jobs, which mostly wait, run in parallel. Timers are as short as
# possible. Two remain fixed in Slurm: 30 seconds between checks of time limits, and two minutes from a requeue to the
# next start, which Cluster.hasten() shortens as an administrator can.
CONFIGURATION = """
ClusterName=longhaul
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdSpoolDir={folder}/spool-%n
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldDebug=verbose
SlurmdDebug=verbose
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SlurmctldParameters=preempt_send_user_signal
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=1,sched_interval=1,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
KillWait=5
MinJobAge=3600
SlurmctldTimeout=120
SlurmdTimeout={slurmd_timeout}
MessageTimeout=60
TmpFS={folder}/tmp
"""


def free_ports(count):
    """Distinct ports that are currently free and stay so: outgoing connections get theirs from another range."""
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    found = []
    candidates = [*range(10000, low), *range(high + 1, 65536)]
    if len(candidates) < 1000:  # where connections may get any port
        candidates = [*range(10000, 65536)]
    for port in random.sample(candidates, len(candidates)):
        with socket.socket() as one:
            try:
                one.bind(("", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise Failure(f"expected {count} free ports, got {len(found)}")


def parents():
    """{pid: parent pid} of all processes."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path("/proc", entry, "stat").read_text()
                found[int(entry)] = int(stat[stat.rindex(")") + 4:].split()[0])
            except (OSError, ValueError):
                continue
    return found


def descendants(root):
    tree, found, grew = parents(), set(), True
    while grew:
        grew = False
        for pid, parent in tree.items():
            if pid not in found and (parent == root or parent in found):
                found.add(pid)
                grew = True
    return found


def variables(pid):
    try:
        pairs = Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(pair.decode(errors="replace").split("=", 1) for pair in pairs if b"=" in pair)


def command_line(pid):
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def open_files(pid):
    try:
        return {path.readlink() for path in Path("/proc", str(pid), "fd").iterdir()}
    except OSError:
        return set()


def signal_waits(pid, number):
    """Whether a signal is pending for the process (also true if the process is gone)."""
    try:
        status = Path("/proc", str(pid), "status").read_text()
    except OSError:
        return True
    return any(int(mask, 16) >> (number - 1) & 1 for mask in re.findall(r"(?:Sig|Shd)Pnd:\s*(\w+)", status))


def prctl(option, value):
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def keep(folder):
    """The keeper: starts the commands in FOLDER/commands.json, waits for the end of standard input, then cleans up."""
    subreaper, parent_death = 36, 1
    prctl(subreaper, 1)  # orphaned job steps stay our descendants
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    plan = json.loads((folder / "commands.json").read_text())
    pids = {}
    for name, command in plan["commands"].items():
        with open(folder / f"{name}.out", "wb") as out:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=plan["environment"],
                                       cwd=folder, start_new_session=True,
                                       preexec_fn=lambda: prctl(parent_death, signal.SIGKILL))
        pids[name] = process.pid
    (folder / "pids.new").write_text(json.dumps(pids))
    (folder / "pids.new").rename(folder / "pids.json")
    while os.read(0, 4096):
        pass
    while True:
        left = [pid for pid in descendants(os.getpid()) if runs(pid)]
        if not left:
            break
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(0.02)
    try:
        while True:
            os.wait()  # includes orphans of killed processes: no zombies remain
    except ChildProcessError:
        pass
    shutil.rmtree(folder, ignore_errors=True)


def system_traces():
    """Paths in the system folders whose names point to daemons of Slurm, munge or PMIx."""
    found = set()
    for top in SYSTEM_FOLDERS:
        for folder, folders, files in os.walk(top):
            # Folders of other tests that run meanwhile; this test's ranks keep their files in the cluster's folder.
            folders[:] = [name for name in folders if not name.startswith(("longhaul-", "ompi."))]
            if folder.count("/") > 4:
                folders[:] = []
            found.update(f"{folder}/{name}" for name in folders + files if re.search("slurm(ctl|step)?d|munge|pmix", name))
    return found


class Cluster:
    """A running cluster. `partitions`: {name: rest of its slurm.conf line}; `nodes`: their names."""

    def __init__(self, nodes, partitions, processors=8, slurmd_timeout=20):
        self.before = system_traces()
        self.folder = Path(tempfile.mkdtemp(prefix="longhaul-slurm-"))
        self.folder.chmod(0o755)  # munged requires that the folders above its socket are open to all
        self.nodes = nodes
        self.waiting = {}  # {requeued job: time it was first seen waiting}
        self.user = pwd.getpwuid(os.geteuid()).pw_name
        for name in ("munge", "state", "tmp", "work"):
            (self.folder / name).mkdir()
        for node in nodes:
            (self.folder / f"spool-{node}").mkdir()
        self.write_configuration(partitions, processors, slurmd_timeout)
        self.environment = {key: value for key, value in os.environ.items()
                            if not key.startswith(("SLURM", "SBATCH", "SRUN", "SQUEUE", "OMPI_", "PMIX_"))}
        self.environment.update(PATH=SEARCH, SLURM_CONF=str(self.folder / "slurm.conf"), TMPDIR=str(self.folder / "tmp"),
                                LC_ALL="C", TZ="UTC")
        self.start()

    def write_configuration(self, partitions, processors, slurmd_timeout):
        host = socket.gethostname().split(".")[0]
        ports = free_ports(len(self.nodes) + 1)
        lines = [CONFIGURATION.format(host=host, port=ports[0], user=self.user, folder=self.folder,
                                      slurmd_timeout=slurmd_timeout)]
        for node, port in zip(self.nodes, ports[1:]):
            lines.append(f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={processors} "
                         f"RealMemory=4000 State=UNKNOWN\n")
        lines += [f"PartitionName={name} {rest}\n" for name, rest in partitions.items()]
        (self.folder / "slurm.conf").write_text("".join(lines))
        # PMIx servers of srun keep their sockets here too.
        (self.folder / "mpi.conf").write_text(f"PMIxCliTmpDirBase={self.folder}/tmp\n")

    def start(self):
        munge = self.folder / "munge"
        (munge / "key").write_bytes(os.urandom(128))
        (munge / "key").chmod(0o400)
        commands = {"munged": ["munged", "--foreground", "--force", f"--key-file={munge}/key", f"--socket={munge}/socket",
                               f"--pid-file={munge}/pid", f"--log-file={munge}/log", f"--seed-file={munge}/seed"],
                    "slurmctld": ["slurmctld", "-D", "-i"]}
        commands.update({f"slurmd-{node}": ["slurmd", "-D", "-N", node] for node in self.nodes})
        for command in commands.values():
            command[0] = shutil.which(command[0], path=SEARCH)
        (self.folder / "commands.json").write_text(json.dumps({"commands": commands, "environment": self.environment}))
        # Started through a process that exits at once, so that the keeper is not a child of the test, and killing the
        # test's process tree does not kill the keeper.
        read, self.pipe = os.pipe()
        with open(self.folder / "keeper.out", "wb") as out:
            starter = subprocess.Popen([sys.executable, __file__, str(self.folder)], stdin=read, stdout=subprocess.PIPE,
                                       stderr=out, env=self.environment)
        os.close(read)
        try:
            self.keeper = int(starter.communicate(timeout=START_LIMIT)[0])
            self.pids = json.loads(wait_for(lambda: self.read("pids.json"), "the keeper starts its daemons", START_LIMIT))
            wait_for(self.idle, "all nodes are idle", START_LIMIT, pause=0.2)
        except BaseException:
            print(self.tails(), file=sys.stderr)
            self.close()
            raise

    def read(self, name):
        try:
            return (self.folder / name).read_text(errors="replace")
        except OSError:
            return ""

    def idle(self):
        dead = [name for name, pid in self.pids.items() if not runs(pid)]
        check(not dead, f"ended at once: {dead}")
        states = self.command("sinfo", "-h", "-N", "-o", "%N %T", fine=True).splitlines()
        return set(states) == {f"{node} idle" for node in self.nodes}

    def command(self, *arguments, fine=False, environment=None, limit=90):
        """The output of a Slurm command. Its failure fails the test unless `fine`."""
        done = subprocess.run(list(map(str, arguments)), capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              env=dict(self.environment, **(environment or {})), timeout=limit, cwd=self.folder / "work")
        check(fine or done.returncode == 0, f"{' '.join(map(str, arguments))}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def job(self, number):
        """The controller's record of a job (or of an array task: "12_1")."""
        text = self.command("scontrol", "show", "job", "-o", number)
        return dict(pair.split("=", 1) for pair in text.splitlines()[0].split() if "=" in pair)

    def hasten(self):
        """Starts requeued jobs early. Slurm makes them wait two minutes (a constant); an administrator may start them
        earlier, but not at once: nodes refuse a launch that is not clearly newer than the order to end the last one."""
        waiting = {}
        for line in self.command("squeue", "-h", "-r", "-t", "PD", "-o", "%i %r", fine=True).splitlines():
            number, reason = line.split(maxsplit=1)
            if reason == "BeginTime":
                waiting[number] = self.waiting.get(number, time.monotonic())
                if time.monotonic() - waiting[number] > 4:
                    self.command("scontrol", "update", f"JobId={number}", "StartTime=now", fine=True)
        self.waiting = waiting

    def processes(self, **wanted):
        """{pid: environment} of the keeper's descendants whose environment has these values."""
        found = {}
        for pid in descendants(self.keeper):
            environment = variables(pid)
            if all(environment.get(key) == str(value) for key, value in wanted.items()):
                found[pid] = environment
        return found

    def ranks(self, number, program):
        """The pids of `program` that belong to the job."""
        return [pid for pid in self.processes(SLURM_JOB_ID=number) if command_line(pid).split(" ")[0].endswith(program)]

    def kill_node(self, node):
        """Simulates a power cut: kills slurmd, its steps and all their processes at once."""
        daemon = self.pids[f"slurmd-{node}"]
        os.kill(daemon, signal.SIGKILL)
        steps = [pid for pid in descendants(self.keeper) if command_line(pid).startswith("slurmstepd: ")
                 and self.folder / f"slurmd-{node}.log" in open_files(pid)]
        check(steps, f"{node} runs steps")
        for step in steps:
            for pid in [step, *descendants(step)]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def tails(self, length=4000):
        """The ends of all logs, to report a failure."""
        # The daemons' output repeats their logs; it is used only if a daemon died before it had a log.
        names = ["keeper.out", "munge/log", "slurmctld.log", *(f"slurmd-{node}.log" for node in self.nodes)]
        names = [name if self.read(name) else name.replace(".log", ".out") for name in names]
        lengths = {name: length if "slurmd-" not in name else length // 5 for name in names}
        return "".join(f"--- {name}\n{self.read(name)[-lengths[name]:]}\n" for name in names)

    def close(self):
        """Ends everything, and fails if any process or file is left."""
        os.close(self.pipe)
        wait_for(lambda: not runs(self.keeper), "the keeper has ended everything", 60)
        mine = [f"{pid} {command_line(pid)}" for pid in parents()
                if pid != os.getpid() and str(self.folder) in command_line(pid) + variables(pid).get("SLURM_CONF", "")]
        check(not mine, f"processes left behind: {mine}")
        check(not self.folder.exists(), f"left behind: {self.folder}")
        new = system_traces() - self.before
        check(not new, f"left behind: {sorted(new)}")


if __name__ == "__main__":
    if os.fork() == 0:
        os.setsid()
        print(os.getpid(), flush=True)
        os.close(1)
        os.open(os.devnull, os.O_WRONLY)
        keep(Path(sys.argv[1]))
