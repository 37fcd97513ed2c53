#!/usr/bin/env python3
"""Runs jobs on a private Slurm cluster with interruptions; the results must be those of a run without Slurm.

usage: slurm_test.py BINARY [SCENARIO …]     all by default, in parallel, because they mostly wait
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
import time
from pathlib import Path

from cluster import Cluster, missing_programs, signal_waits
from harness import REPOSITORY, Bench, Failure, check, digest, journal_keys, make_prompts, results, wait_for

ITEMS, TOKENS, CHECKPOINT = 6, 1500, 100
# Generous limits: they only end failing tests, and the machine may be busy.
STARTS, ENDS = 120.0, 180.0
TWO_LOOKS = 65.0  # Slurm checks time limits every 30 seconds

# Each scenario that changes nodes has its own nodes, so that scenarios do not disturb each other.
NODES = ["n1", "n2", "drained1", "drained2", "dead1", "dead2", "lost1", "lost2", "lost3", "shared"]
PARTITIONS = {
    "main": "Nodes=n1,n2 Default=YES MaxTime=60 State=UP",
    "minute": "Nodes=n1,n2 DefaultTime=1 MaxTime=60 State=UP",
    "drain": "Nodes=drained[1-2] MaxTime=60 State=UP",
    "dead": "Nodes=dead[1-2] MaxTime=60 State=UP",
    "lose": "Nodes=lost[1-3] MaxTime=60 State=UP",
    "low": "Nodes=shared MaxTime=60 State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=60",
    "lowest": "Nodes=shared MaxTime=60 State=UP PriorityTier=1 PreemptMode=REQUEUE",
    "high": "Nodes=shared MaxTime=60 State=UP PriorityTier=10 PreemptMode=OFF",
}


def send(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


def ranks_of(program, *arguments):
    """The pids of `program` with these arguments. Must be cheap: the machine is busy with the ranks of many jobs."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path("/proc", entry, "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if words[0] == program and all(argument in words for argument in arguments):
            found.append(int(entry))
    return found


class Catcher(threading.Thread):
    """Stops (SIGSTOP) the ranks of a launch as soon as it has a checkpoint, however early that is."""

    def __init__(self, program, run, arguments):
        super().__init__(daemon=True)
        self.program, self.run_folder, self.arguments = program, run, arguments
        self.pids = []
        self.start()

    def run(self):
        end = time.monotonic() + STARTS
        while time.monotonic() < end and not self.pids:
            if any(path.name.count(".") == 1 for path in self.run_folder.glob("checkpoints/*.h5")):
                self.pids = ranks_of(self.program, *self.arguments)
                send(self.pids, signal.SIGSTOP)
            time.sleep(0.02)


class Job:
    """A job in the queue, and its run folder."""

    def __init__(self, site, number, run, records=None, catcher=None):
        self.site, self.number, self.run, self.records = site, number, run, records or run / "slurm"
        self.catcher = catcher

    def facts(self):
        return self.site.cluster.job(self.number)

    def state(self):
        return self.facts()["JobState"]

    def wait(self, condition, what, limit=STARTS):
        """Waits until `condition` holds for the job's facts."""
        facts = {}

        def holds():
            facts.update(self.facts())
            return condition(facts)
        try:
            wait_for(holds, what, limit, pause=0.5)
        except Failure as failure:
            raise Failure(f"{failure}\njob {self.number}: {facts.get('JobState')} {facts.get('Reason')}\n{self.log()}")
        return facts

    def log(self):
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}"
                         for path in sorted(self.records.glob("*[!h]")) if path.is_file())

    def ranks(self):
        return self.site.cluster.ranks(self.facts()["JobId"], self.site.program)

    def caught(self):
        """Returns the ranks, stopped (SIGSTOP) when there is a checkpoint but no results yet. They stay stopped until
        thawed, however long Slurm takes."""
        self.site.wait(lambda: not self.catcher.is_alive(), f"job {self.number} is caught", self)
        check(self.catcher.pids, f"job {self.number} has a checkpoint\n{self.log()}")
        check(not (self.run / "results.jsonl").exists(), f"job {self.number} was caught in the middle\n{self.log()}")
        return self.catcher.pids

    def thaw(self, pids, limit=STARTS):
        """Continues the ranks as soon as USR1 is pending for all of them."""
        try:
            wait_for(lambda: all(signal_waits(pid, signal.SIGUSR1) for pid in pids), "USR1 reaches the ranks", limit, pause=0.1)
        finally:
            send(pids, signal.SIGCONT)

    def ends(self, state="COMPLETED", code="0:0", restarts=None):
        final = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "BOOT_FAIL")
        facts = self.wait(lambda facts: facts["JobState"] in final, "the job ends", ENDS)
        got = (facts["JobState"], facts["ExitCode"])
        check(got == (state, code), f"job {self.number}: expected {state} {code}, got {got}\n{self.log()}")
        check(restarts is None or int(facts["Restarts"]) == restarts,
              f"job {self.number}: expected {restarts} restarts, got {facts['Restarts']}\n{self.log()}")
        return facts


class Site:
    """The cluster, and the program and job to run on it."""

    def __init__(self, binary):
        self.cluster = Cluster(NODES, PARTITIONS)
        try:
            # In the cluster's folder, which is removed even if this process is killed.
            tempfile.tempdir = str(self.cluster.folder)
            self.bench = Bench(binary)
            make_prompts(self.bench.folder / "prompts.jsonl", ITEMS)
            self.job = self.bench.job(max_tokens=TOKENS, checkpoint_tokens=CHECKPOINT)
            self.program = self.bench.binary
        except BaseException:
            self.cluster.close()
            raise
        self.closing = threading.Event()
        self.hastener = threading.Thread(target=self.hasten)
        self.hastener.start()
        self.whole = self.bench.folder / "whole"

    def hasten(self):
        while not self.closing.wait(1):
            self.cluster.hasten()

    def close(self):
        self.closing.set()
        self.hastener.join()
        self.bench.close()
        self.cluster.close()

    def wait(self, condition, what, job):
        try:
            return wait_for(condition, what, STARTS, pause=0.1)
        except Failure as failure:
            facts = job.facts()
            raise Failure(f"{failure}\njob {job.number}: {facts['JobState']} {facts['Reason']}\n{job.log()}")

    def submit(self, name, *options, job=None, nodes=1, ranks=2, keys=(), fine=True, catch=None):
        """Submits a job with slurm/submit, as a user does. Returns the job, or with `fine` false the message of the
        expected refusal. `catch`: arguments of the launch to stop in the middle of its work, () for any."""
        run = self.bench.folder / name
        catcher = None
        if catch is not None:
            shard = "".join(argument.replace("--shard=", "shard-").replace("/", "-of-") for argument in catch)
            catcher = Catcher(self.program, run / shard, [f"--output={run}", *catch])
        # All nodes of this cluster are on one machine, so ranks of different nodes must not use shared memory.
        environment = {"OMPI_MCA_btl": "tcp,self", "OMPI_MCA_btl_tcp_if_include": "lo", "OMPI_MCA_osc": "^sm",
                       "OMPI_MCA_mpi_yield_when_idle": "1", "HOME": str(self.bench.folder), "LONGHAUL": self.program}
        if nodes > 1:
            # The script sets mpirun's session folder only for single-node jobs, and here all nodes share one machine.
            environment["OMPI_MCA_orte_tmpdir_base"] = tempfile.mkdtemp(prefix="s", dir=self.cluster.folder)
        command = [REPOSITORY / "slurm" / "submit", job or self.job, "--nodes", nodes, "--ranks-per-node", ranks, *options,
                   f"--output={run}", *keys]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, stdin=subprocess.DEVNULL,
                              env=dict(self.cluster.environment, **environment), timeout=STARTS, cwd=self.bench.folder)
        if not fine:
            check(done.returncode != 0, f"{name}: expected to be refused\n{done.stdout}")
            return done.stderr
        check(done.returncode == 0, f"{name}: submit returned {done.returncode}\n{done.stdout}{done.stderr}")
        return Job(self, re.match(r"job (\d+)", done.stdout).group(1), run, catcher=catcher)

    def equals(self, run):
        """The results are those of the run without Slurm, every item exactly once."""
        check(digest(run) == digest(self.whole), f"{run.name}: the bytes of a run without Slurm")
        keys = [key for folder in [run, *run.glob("shard-*")] for key in journal_keys(folder)]
        check(len(keys) == ITEMS and len(set(keys)) == ITEMS, f"{run.name}: {len(keys)} records of {len(set(keys))} items")


# --- scenarios


def two_nodes(site):
    """mpirun over two nodes; submitting the job again adds nothing."""
    job = site.submit("two_nodes", "--time", "10", nodes=2)
    job.wait(lambda facts: facts["JobState"] == "RUNNING", "it runs")
    facts = job.ends(restarts=0)
    check(facts["NumNodes"] == "2", f"on {facts['NodeList']}")
    site.equals(job.run)
    again = site.submit("two_nodes", "--time", "10", nodes=2)
    again.ends(restarts=0)
    site.equals(job.run)


def srun(site):
    """Ranks started by srun and PMIx; meanwhile a second job for the run folder is refused."""
    job = site.submit("srun", "--launcher", "srun", catch=())
    pids = job.caught()
    second = site.submit("srun", fine=False)
    check("in the queue" in second and job.number in second, f"a second job of the run folder: {second}")
    send(pids, signal.SIGCONT)
    job.ends(restarts=0)
    site.equals(job.run)


def time_limit(site):
    """Slurm's warning before the time limit: the job is saved, requeued and continued under the same job id."""
    job = site.submit("time_limit", "--partition", "minute", "--grace", "60", catch=())
    pids = job.caught()
    try:
        job.thaw(pids, limit=TWO_LOOKS)
    except Failure:
        pass  # the signal came before the ranks were stopped and they are saving; the checks below decide
    facts = job.ends()
    check(int(facts["Restarts"]) >= 1, f"it was requeued\n{job.log()}")
    site.equals(job.run)


def scancel(site):
    """A manual USR1 to the batch shell; here with ranks started by srun."""
    job = site.submit("scancel", "--launcher", "srun", catch=())
    pids = job.caught()
    site.cluster.command("scancel", "--signal=USR1", "--batch", job.number)
    job.thaw(pids)
    site.wait(lambda: job.facts()["Restarts"] == "1" and job.ranks(), "it goes on", job)
    job.ends(restarts=1)
    site.equals(job.run)


def stay_stopped(site):
    """A manual USR2: the job stays stopped until it is submitted again, then on more ranks."""
    job = site.submit("stay_stopped", catch=())
    pids = job.caught()
    site.cluster.command("scancel", "--signal=USR2", "--batch", job.number)
    job.thaw(pids)
    job.ends("FAILED", "75:0", restarts=0)
    check(not (job.run / "results.jsonl").exists(), "it stopped in the middle")
    again = site.submit("stay_stopped", nodes=2)
    again.ends(restarts=0)
    site.equals(job.run)


def steps(site):
    """USR1 to the steps only: the batch shell notices it by the exit code."""
    job = site.submit("steps", "--launcher", "srun", catch=())
    pids = job.caught()
    site.cluster.command("scancel", "--signal=USR1", job.number)
    job.thaw(pids)
    job.ends(restarts=1)
    site.equals(job.run)


def preempted(site):
    """A job of a higher partition takes the node: with a grace time to save, and without."""
    low = site.submit("low", "--partition", "low", "--grace", "60", catch=())
    lowest = site.submit("lowest", "--partition", "lowest", catch=())
    pids = low.caught()
    lowest_pids = lowest.caught()
    high = site.cluster.command("sbatch", "--parsable", "--partition=high", "--exclusive", "--output=/dev/null",
                                "--wrap=true").strip()
    low.thaw(pids)
    send(lowest_pids, signal.SIGCONT)
    site.wait(lambda: site.cluster.job(high)["JobState"] == "COMPLETED", "the higher job runs", low)
    for job in (low, lowest):
        job.ends(restarts=1)
        site.equals(job.run)


def drained(site):
    """A node is being drained: at the signal the job leaves it and continues on another."""
    job = site.submit("drained", "--partition", "drain", catch=())
    pids = job.caught()
    first = job.facts()["NodeList"]
    site.cluster.command("scontrol", "update", f"NodeName={first}", "State=DRAIN", "Reason=test")
    site.cluster.command("scancel", "--signal=USR1", "--batch", job.number)
    job.thaw(pids)
    facts = job.ends(restarts=1)
    check(facts["NodeList"] != first, f"first on {first}, then on {facts['NodeList']}")
    site.equals(job.run)


def node_dead(site):
    """A node loses power: Slurm notices and starts the job on another."""
    job = site.submit("node_dead", "--partition", "dead", catch=())
    job.caught()
    first = job.facts()["NodeList"]
    site.cluster.kill_node(first)
    facts = job.ends(restarts=1)
    check(facts["NodeList"] != first, f"first on {first}, then on {facts['NodeList']}")
    site.equals(job.run)


def node_lost(site):
    """The second node of a job dies: mpirun on the first notices before Slurm does."""
    job = site.submit("node_lost", "--partition", "lose", nodes=2, catch=())
    job.caught()
    check(job.facts()["NodeList"] == "lost[1-2]", f"on {job.facts()['NodeList']}")
    site.cluster.kill_node("lost2")
    facts = job.ends()
    check(int(facts["Restarts"]) >= 1 and facts["NodeList"] == "lost[1,3]", f"then on {facts['NodeList']}\n{job.log()}")
    site.equals(job.run)


def array(site):
    """Three launches share the items without a common MPI world; one is stopped and continues alone, and the last one
    merges the results."""
    job = site.submit("array", "--array", "3", ranks=1, catch=("--shard=1/3",))
    tasks = [Job(site, f"{job.number}_{index}", job.run / f"shard-{index}-of-3", job.records, job.catcher)
             for index in range(3)]
    pids = tasks[1].caught()
    site.cluster.command("scancel", "--signal=USR1", "--batch", tasks[1].number)
    tasks[1].thaw(pids)
    for index, task in enumerate(tasks):
        task.ends(restarts=1 if index == 1 else 0)
    check(len(list(job.run.glob("shard-*-of-3"))) == 3, f"shards {list(job.run.iterdir())}")
    site.equals(job.run)


def wrong_job(site):
    """submit refuses errors it can see; a job that becomes wrong later fails once."""
    wrong = site.bench.job("wrong.cfg", max_tokenz=3)
    message = site.submit("wrong", job=wrong, fine=False)
    check("max-tokenz" in message, f"names the key: {message}")
    later = site.bench.job("later.cfg", max_tokens=TOKENS)
    job = site.submit("wrong", "--sbatch-option=--hold", job=later)
    later.write_text(later.read_text() + "max-tokenz = 3\n")
    site.cluster.command("scontrol", "release", job.number)
    job.ends("FAILED", "2:0", restarts=0)
    check("max-tokenz" in job.log(), f"the log names the key\n{job.log()}")


def always_crashes(site):
    """Ranks that die at once: the job gives up after two launches without progress and states the reason."""
    program = site.bench.folder / "crashes"
    program.write_text(f'#!/bin/sh\nif [ "$1" = run ]; then kill -SEGV $$; fi\nexec "{site.program}" "$@"\n')
    program.chmod(0o755)
    job = site.submit("always_crashes", "--longhaul", program)
    facts = job.ends("FAILED", f"{128 + signal.SIGSEGV}:0", restarts=1)
    reason = "".join(path.read_text() for path in (job.run / "slurm").glob("*.reason"))
    check("no progress" in reason, f"the reason {reason!r}\n{facts}\n{job.log()}")


SCENARIOS = {one.__name__: one for one in (time_limit, node_dead, node_lost, preempted, two_nodes, srun, scancel, stay_stopped, steps,
                                           drained, array, wrong_job, always_crashes)}

# A slurmd that does not run as root cannot set up PMIx for a step ("pmixp_usock_create_srv"): it must hand over a
# socket to the job's user.
NEED_ROOT = ("srun", "scancel", "steps")


def perform(site, names):
    """Runs the scenarios in parallel. Returns the failures."""
    failures = {}

    def one(name):
        start = time.monotonic()
        try:
            SCENARIOS[name](site)
            print(f"PASS {name} ({time.monotonic() - start:.0f} s)", flush=True)
        except Exception as failure:
            failures[name] = failure
            print(f"FAIL {name} ({time.monotonic() - start:.0f} s): {failure}", file=sys.stderr, flush=True)
            if not isinstance(failure, Failure):
                traceback.print_exc()
    threads = [threading.Thread(target=one, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


def main():
    names = sys.argv[2:] or list(SCENARIOS)
    if len(sys.argv) < 2 or not set(names) <= set(SCENARIOS):
        print(f"usage: {sys.argv[0]} BINARY [{' '.join(SCENARIOS)}]", file=sys.stderr)
        return 2
    missing = missing_programs()
    if missing:
        print(f"expected {', '.join(missing)}, got none; tests/install_packages.sh installs Slurm and munge", file=sys.stderr)
        return 1
    if os.geteuid() != 0:
        print(f"not root: without what starts its ranks by srun and PMIx ({', '.join(NEED_ROOT)})")
        names = [name for name in names if name not in NEED_ROOT]
    site = Site(sys.argv[1])
    try:
        expected = site.bench.run(site.job, 1, f"--output={site.whole}")
        check(expected.code == 0, f"the run without Slurm: {expected.code}\n{expected.errors}")
        failures = perform(site, names)
        if failures:
            print(site.cluster.tails(), file=sys.stderr)
    finally:
        site.close()
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
