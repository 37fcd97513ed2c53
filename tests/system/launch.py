"""Starting the real program from outside, for the tests in this folder and in tests/crash."""

import hashlib
import json
import os
import pathlib
import signal
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]


def environment():
    """Ranks share cores in the tests: waiting ranks must yield, and idle OpenMP threads must sleep."""
    env = dict(os.environ)
    env.update(OMPI_MCA_mpi_yield_when_idle="1", OMPI_MCA_rmaps_base_oversubscribe="1", OMP_WAIT_POLICY="passive")
    env.setdefault("OMPI_ALLOW_RUN_AS_ROOT", "1")
    env.setdefault("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
    return env


def command(program, ranks, job, options):
    settings = [f"--{key}={value}" for key, value in options.items()]
    launcher = ["mpirun", "-q", "--oversubscribe", "--bind-to", "none", "-n", str(ranks)] if ranks > 1 else []
    return [*launcher, str(program), "run", str(job), *settings]


class Launch:
    """One launch in a process group of its own, so that all of it can be killed at once."""

    def __init__(self, program, ranks, job, options, log):
        self.log = open(log, "ab")
        self.process = subprocess.Popen(
            command(program, ranks, job, options), stdout=self.log, stderr=subprocess.STDOUT, env=environment(), start_new_session=True
        )

    def wait(self, seconds):
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"no end after {seconds} s: {self.process.args}") from None
        self.log.close()
        return code

    def alive(self):
        return self.process.poll() is None

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        """SIGKILL to the launcher and, since mpirun gives its ranks sessions of their own, to every descendant."""
        for pid in reversed(descendants(self.process.pid)):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait()
        self.log.close()


def descendants(pid):
    """`pid` and all processes below it."""
    children = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, queue = [], [pid]
    while queue:
        at = queue.pop()
        found.append(at)
        queue.extend(children.get(at, []))
    return found


def run(program, ranks, job, options, log, seconds=300, expect=0):
    code = Launch(program, ranks, job, options, log).wait(seconds)
    text = pathlib.Path(log).read_text(errors="replace")
    assert code == expect, f"exit code {code}, expected {expect}: {command(program, ranks, job, options)}\n{text[-3000:]}"
    return text


def sha(run_folder):
    return hashlib.sha256((pathlib.Path(run_folder) / "results.jsonl").read_bytes()).hexdigest()


def lines(path):
    return [json.loads(line) for line in pathlib.Path(path).read_text().splitlines()]


def statistics(run_folder):
    return lines(pathlib.Path(run_folder) / "stats.jsonl")
