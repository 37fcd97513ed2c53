"""slurm/submit and slurm/longhaul.sbatch with fake Slurm, mpirun and longhaul programs, which record their calls and
answer as the test case says. No test waits for a clock.

    scripts_test.py [CASE …]
"""
import os
import shlex
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SLURM = Path(__file__).resolve().parents[2] / "slurm"

# Each fake appends its name and arguments to $FAKES/calls: byte 31 ends a word, byte 30 a call.
COMMON = r"""#!/bin/bash
name=$(basename "$0")
note() { { printf '%s\037' "$@"; printf '\036'; } >>"$FAKES/calls"; }
note "$name" "$@"
# The first line of a file, which is dropped while others follow.
next() {
  [ -e "$FAKES/$1" ] || return 1
  head -n 1 "$FAKES/$1"
  if [ "$(wc -l <"$FAKES/$1")" -gt 1 ]; then sed -i 1d "$FAKES/$1"; fi
}
"""
FAKES = {
    "longhaul": r"""
case "$1 $*" in
  --version*) echo longhaul 0 ;;
  check*--print=tensor-parallel*) cat "$FAKES/tensor_parallel" 2>/dev/null || echo 1 ;;
  check*--print=output*) if [ -e "$FAKES/output" ]; then cat "$FAKES/output"; else echo "error: no run folder" >&2; exit 2; fi ;;
  check*) cat "$FAKES/check_says" 2>/dev/null; exit "$(next check_code || echo 0)" ;;
  status*) next progress || exit 2 ;;
esac
""",
    # The ranks: `signal NAME …` signals the batch shell and waits until it forwards USR1; otherwise an exit code.
    "mpirun": r"""
printf '%s\n' "${TMPDIR:-}" "$(cd "${TMPDIR:-/}" && echo there)" >"$FAKES/ranks_environment"
plan=$(next ranks || echo 0)
if [ "${plan%% *}" = signal ]; then
  trap 'heard=1; note heard USR1' USR1
  for signal in ${plan#signal }; do
    heard=
    kill -s "$signal" "$PPID"
    while [ -z "$heard" ]; do /bin/sleep 0.02; done
  done
  plan=$(cat "$FAKES/stop_code" 2>/dev/null || echo 75)
elif [ "$plan" = dies ]; then
  kill -USR1 "$PPID"
  kill -USR1 $$
fi
exit "$plan"
""",
    "sbatch": r"""
cat "$FAKES/sbatch_says" 2>/dev/null
env | grep '^SLURM_\|^LONGHAUL_\|^TMPDIR' >"$FAKES/sbatch_environment"
exit "$(next sbatch_code || echo 0)"
""",
    "squeue": r"""cat "$FAKES/squeue_says" 2>/dev/null; exit "$(next squeue_code || echo 0)" """,
    "scontrol": r"""exit "$(next scontrol_code || echo 0)" """,
    "sleep": "",
}
FAKES["srun"] = FAKES["mpirun"]


def progress(state, done=0, tokens=0, stop_seconds=0, positions=0):
    return f"state={state} done={done} failed=0 tokens={tokens} positions={positions} stop_seconds={stop_seconds}\n"


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        # Every path contains characters that need quoting in a shell or sbatch.
        self.folder = Path(temporary.name) / "it's a \"place\" $HOME #1 50%"
        self.bin = self.folder / "bin"
        self.bin.mkdir(parents=True)
        for name, text in FAKES.items():
            (self.bin / name).write_text(COMMON + text)
            (self.bin / name).chmod(0o755)
        self.job = self.folder / "my job.cfg"
        self.job.write_text("task = pg19\n")
        self.output = self.folder / "runs" / "mine"
        self.say("output", f"{self.output}\n")
        self.say("sbatch_says", "12\n")
        self.environment = {
            "PATH": f"{self.bin}:/usr/bin:/bin", "FAKES": str(self.folder), "HOME": str(self.folder), "LC_ALL": "C.UTF-8"}

    def say(self, name, text):
        (self.folder / name).write_text(text)

    def calls(self, program=None):
        """All calls as lists of words, or the arguments of one program's calls."""
        file = self.folder / "calls"
        text = file.read_text() if file.exists() else ""
        calls = [call.split("\x1f")[:-1] for call in text.split("\x1e")[:-1]]
        return [call[1:] for call in calls if call[0] == program] if program else calls

    def submit(self, *arguments, code=0, job=True, script=SLURM / "submit", **environment):
        command = [str(script), *([str(self.job)] if job else []), *map(str, arguments)]
        done = subprocess.run(command, env={**self.environment, **environment}, cwd=self.folder, capture_output=True, text=True)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def refused(self, line, *arguments, code=2, **more):
        """Expects a one-line error that contains `line`, and nothing submitted or written."""
        error = self.submit(*arguments, code=code, **more).stderr
        self.assertEqual(error.count("\n"), 1, error)
        self.assertIn(line, error)
        self.assertFalse(self.calls("sbatch"))
        self.assertFalse(self.output.exists())

    def script(self, *arguments, **environment):
        return self.submit(*arguments, "--dry-run", **environment).stdout

    def directives(self, *arguments):
        """The #SBATCH directives, by option."""
        lines = [line.split(" ", 1)[1] for line in self.script(*arguments).splitlines() if line.startswith("#SBATCH")]
        return dict((shlex.split(line)[0] + "=").split("=", 2)[:2] for line in lines)


class Submit(Case):
    def test_one_line_is_enough(self):
        answer = self.submit()
        self.assertEqual(self.calls("sbatch"), [["--parsable", str(self.output / "slurm" / "job.sbatch")]])
        self.assertEqual((self.output / "slurm" / "job-id").read_text(), "12\n")
        self.assertIn("job 12: longhaul status ", answer.stdout)
        self.assertEqual(answer.stderr, "")
        self.assertEqual(self.script(), (self.output / "slurm" / "job.sbatch").read_text())

    def test_dry_run_writes_and_submits_nothing(self):
        self.assertIn("#SBATCH --nodes=3\n", self.script("--nodes", 3))
        self.assertFalse(self.output.exists())
        self.assertFalse(self.calls("sbatch") + self.calls("squeue"))

    def test_options_become_directives(self):
        head = self.directives(
            "-N", 2, "--ranks-per-node=8", "--cpus-per-rank", "4", "--gpus-per-node=4", "-t2:00:00", "-p", "gpu,long", "-A", "abc",
            "--qos=high", "--constraint=[ib&v100]", "--mem=0", "--exclusive", "--reservation=r", "--dependency=afterok:7",
            "--mail-user=a@b.c", "--job-name", "a b", "--sbatch-option=--gres=shm:1", "--sbatch-option", "--contiguous")
        self.assertEqual(head, {
            "--job-name": "a b", "--comment": f"longhaul {self.output}", "--chdir": str(self.folder), "--nodes": "2",
            "--ntasks-per-node": "8", "--cpus-per-task": "4", "--gpus-per-node": "4", "--time": "2:00:00", "--partition": "gpu,long",
            "--account": "abc", "--qos": "high", "--constraint": "[ib&v100]", "--mem": "0", "--exclusive": "", "--reservation": "r",
            "--dependency": "afterok:7", "--mail-user": "a@b.c", "--output": str(self.output).replace("%", "%%") + "/slurm/%j.log",
            "--signal": "B:USR1@120", "--requeue": "", "--open-mode": "append", "--gres": "shm:1", "--contiguous": ""})

    def test_array(self):
        head = self.directives("--array", "8%2")
        self.assertEqual(head["--array"], "0-7%2")
        self.assertTrue(head["--output"].endswith("/slurm/%A_%a.log"))
        self.assertEqual(self.directives("--array=1")["--array"], "0-0")
        for wrong in ("0", "0-7", "8%", "8%0", "x"):
            self.refused("array: expected K, or K%M", f"--array={wrong}")
        for check in (["check", str(self.job)], ["check", str(self.job), "--shard", "0/8"]):  # all items; what a task will run
            self.assertIn(check, self.calls("longhaul"))

    def test_warnings_of_the_check_are_shown(self):
        self.say("check_says", "  items  3\nwarning: memory: too little\ncan run, with 1 warning\n")
        self.assertEqual(self.submit().stderr, "warning: memory: too little\n")

    def test_values_reach_longhaul_as_they_were(self):
        keys = ["--stop=it's \"over\" $PATH `id` \\ !", "--stop=ä #", "--token-ids", "--prompt-tokens=5", "--stop=*"]
        self.submit(*keys)
        self.run_script()
        ranks = self.calls("mpirun")[0]
        self.assertEqual(ranks[-len(keys) - 3:], [str(self.bin / "longhaul"), "run", str(self.job), *keys])

    def run_script(self):
        script = self.output / "slurm" / "job.sbatch"
        return subprocess.run(["/bin/bash", script], env={**self.environment, "SLURM_JOB_ID": "12"}, capture_output=True, text=True)

    def test_wrong_usage_is_one_line(self):
        for line, arguments in [
            ("nodes: expected an integer of at least 1, got '0'", ["--nodes=0"]),
            ("nodes: expected an integer of at least 1, got 'two'", ["--nodes", "two"]),
            ("nodes: expected a value, got nothing; write --nodes VALUE", ["--nodes"]),
            ("nodes: expected a value, got nothing; write --nodes VALUE", ["--nodes="]),
            ("time: expected a value, got nothing", ["--time", "--nodes=1"]),
            ("exclusive: expected no value, got 'yes'", ["--exclusive=yes"]),
            ("launcher: expected mpirun or srun, got 'aprun'", ["--launcher=aprun"]),
            ("time: expected minutes, H:M:S or days-H:M:S, got '2h'", ["--time=2h"]),
            ("expected one job file, got", ["other.cfg"]),
            ("ntasks-per-node: expected an option of submit, got sbatch's; write --ranks-per-node R", ["--ntasks-per-node=2"]),
            ("gres: expected an option of submit, got sbatch's; write --sbatch-option=--gres=…", ["--gres", "gpu:1"]),
            ("sbatch-option: expected an option of sbatch, got 'gres=1'", ["--sbatch-option=gres=1"]),
            ("expected an option of submit, got '-x'", ["-x"]),
            ("setup: expected one line, got several", ["--setup=a\nb"]),
            ("longhaul: expected a program, got '/no/longhaul'", ["--longhaul=/no/longhaul"]),
            ("site: expected a file to read, got '/no/site'", ["--site", "/no/site"]),
        ]:
            with self.subTest(line):
                self.refused(line, *arguments)
        self.refused("expected submit JOB.cfg, got no JOB.cfg", job=False)
        self.refused("none.cfg: expected a job file to read, got none", "none.cfg", job=False)

    def test_ranks_are_divided_into_groups(self):
        self.say("tensor_parallel", "2\n")
        self.refused(
            "tensor-parallel: expected a divisor of the 3 ranks (nodes times ranks-per-node), got 2; nothing was submitted",
            "--ranks-per-node", 3, "--tensor-parallel=2")
        asked = next(call for call in self.calls("longhaul") if "--print=tensor-parallel" in call)
        self.assertIn("--tensor-parallel=2", asked)
        self.submit("--ranks-per-node", 3, "--nodes", 2, "--tensor-parallel=2")

    def test_help(self):
        self.assertIn("--ranks-per-node R", self.submit("--help", job=False).stdout)

    def test_wrong_job_fails_at_the_desk(self):
        self.say("check_code", "2\n")
        self.say("check_says", "error: my job.cfg: line 3: unknown key 'sed'\n")
        error = self.submit(code=2).stderr
        self.assertIn("unknown key 'sed'", error)
        self.assertFalse(self.calls("sbatch"))
        self.submit("--no-check")
        self.assertEqual(len(self.calls("sbatch")), 1)

    def test_items_that_would_fail_do_not_hold_the_others_up(self):
        self.say("check_code", "3\n")
        self.say("check_says", "item 7 would fail\n")
        self.assertIn("item 7 would fail", self.submit().stderr)
        self.assertEqual(len(self.calls("sbatch")), 1)

    def test_program_is_needed_at_the_desk(self):
        (self.bin / "longhaul").rename(self.bin / "elsewhere")
        self.refused("longhaul: expected the program on this machine", f"--longhaul=longhaul", code=1)
        module = self.folder / "module"
        module.mkdir()
        (self.bin / "elsewhere").rename(module / "longhaul")
        script = self.script("--longhaul=longhaul", f"--setup=PATH=$PATH:{shlex.quote(str(module))}")
        self.assertIn("\nlonghaul=longhaul\n", script)
        self.assertIn("\n  PATH=$PATH:'", script)

    def test_grace(self):
        for stop_seconds, grace in [("0", 120), ("0.0", 120), ("2.1", 60), ("0.4", 60), ("29.5", 90), ("300", 903), ("x", 120)]:
            self.say("progress", progress("stopped", stop_seconds=stop_seconds))
            self.assertEqual(self.directives()["--signal"], f"B:USR1@{grace}", stop_seconds)
        self.assertEqual(self.directives("--grace=45")["--signal"], "B:USR1@45")
        self.refused("time: expected more than the 903 s of grace and the minute", "--grace=903", "--time=16")
        self.refused("got '0-0:3' (180 s)", "--grace=120", "--time=0-0:3")
        self.script("--grace=120", "--time=3:01")
        self.script("--grace=120", "--time=UNLIMITED")
        self.script("--grace=7000", "--time=0-2")

    def test_site_file(self):
        self.say("site.conf", "# our site\npartition = gpu \naccount=abc\r\n\nexclusive = true\nsetup = module load a\nsetup = module load b")
        script = self.script("--site=site.conf", "-p", "debug", BASH_ENV=str(self.module()))
        self.assertIn("#SBATCH --partition=debug\n", script)
        self.assertIn("#SBATCH --account=abc\n", script)
        self.assertIn("#SBATCH --exclusive\n", script)
        self.assertIn("\n  module load a\n  module load b\n  :\n}\nset -- ", script)
        self.assertIn("#SBATCH --partition=gpu\n", self.script(LONGHAUL_SITE="site.conf", BASH_ENV=str(self.module())))
        self.refused("LONGHAUL_SITE: expected a file to read, got '/no/site'", LONGHAUL_SITE="/no/site")
        own = self.folder / ".config" / "longhaul" / "site.conf"
        own.parent.mkdir(parents=True)
        own.write_text("qos = own\n")
        self.assertIn("#SBATCH --qos=own\n", self.script())
        for line, text in [("line 1: expected option = value, got 'x'", "x\n"), ("expected an option of submit, got 'seed'", "seed = 1\n"),
                           ("exclusive: expected true or false, got '1'", "exclusive = 1\n"), ("got 'site'", "site = b\n")]:
            self.say("wrong.conf", text)
            self.refused(line, "--site=wrong.conf")

    def module(self):
        """Provides a `module` shell function, as on clusters."""
        file = self.folder.parent / "bashrc"  # bash expands BASH_ENV
        file.write_text("module() { :; }\n")
        return file

    def test_second_job_of_a_run_folder(self):
        mine = f"longhaul {self.output}"
        for state in ("PENDING", "RUNNING", "COMPLETING", "REQUEUE_HOLD"):
            self.say("squeue_says", f"7|RUNNING|longhaul /other\n9|{state}|{mine}\n")
            self.refused(f"got job 9, {state}; wait for it or scancel 9", code=1)
        self.submit("--dependency=afterany:9")
        self.say("squeue_says", f"9|COMPLETED|{mine}\n8|RUNNING|{mine}/more\n5|RUNNING|\n")
        self.assertEqual(self.submit().stderr, "")
        self.say("squeue_says", f"9|DREAMING|{mine}\n")
        self.assertIn("a state not known here: 'DREAMING'", self.submit().stderr)

    def test_squeue_without_an_answer_holds_nothing_up(self):
        self.say("squeue_says", "slurm_load_jobs error: Unable to contact slurm controller\n")
        self.say("squeue_code", "1\n")
        self.assertIn("warning: squeue failed (slurm_load_jobs error", self.submit().stderr)
        (self.bin / "timeout").write_text('#!/bin/sh\nexit 124\n')  # as when squeue hangs
        (self.bin / "timeout").chmod(0o755)
        self.assertIn("warning: squeue failed", self.submit().stderr)
        self.assertEqual(len(self.calls("sbatch")), 2)

    def test_answers_of_sbatch(self):
        for says, job in [("12\n", "12"), ("12;cluster\n", "12;cluster"), ("Submitted batch job 12\n", "12"),
                          ("Welcome!\nSubmitted batch job 12 on cluster x\nYou have 3 hours left\n", "12;x")]:
            self.say("sbatch_says", says)
            self.assertIn("job 12: ", self.submit().stdout)
            self.assertEqual((self.output / "slurm" / "job-id").read_text(), job + "\n")
            self.run_script()
            self.assertEqual((self.output / "slurm" / "job-id").read_text(), job + "\n")
        for says in ("", "garbage\n", "12 jobs of yours wait\n"):
            self.say("sbatch_says", says)
            self.assertIn("sbatch: expected the number of a job, got '", self.submit(code=1).stderr)
        self.say("sbatch_code", "3\n")
        self.assertIn("sbatch: expected it to take", self.submit(code=3).stderr)

    def test_no_sbatch(self):
        path = self.folder / "desk"
        path.mkdir()
        for tool in ("bash", "sed", "realpath", "readlink", "dirname", "basename", "id", "timeout", "cat", "head", "wc"):
            (path / tool).symlink_to(f"/usr/bin/{tool}")
        for fake in ("longhaul",):
            (path / fake).symlink_to(self.bin / fake)
        self.refused("sbatch: expected Slurm on this machine, got none", code=1, PATH=str(path))


class Body(Case):
    """The batch script, run directly. The script that submit writes differs only in its settings."""

    def run_body(self, *arguments, code=0, by_hand=True, **environment):
        slurm = {"SLURM_JOB_ID": "12", "SLURM_NTASKS": "4", "SLURM_JOB_NUM_NODES": "2", **environment}
        script = SLURM / "longhaul.sbatch" if by_hand else self.output / "slurm" / "job.sbatch"
        command = ["/bin/bash", str(script), *([str(self.job), *arguments] if by_hand else [])]
        done = subprocess.run(command, env={**self.environment, **slurm}, cwd=self.folder, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stderr

    def kept(self, name):
        file = self.output / "slurm" / name
        return file.read_text() if file.exists() else ""

    def requeues(self):
        return self.calls("scontrol")

    def test_ranks_by_mpirun(self):
        self.run_body("--seed=7")
        root = ["--allow-run-as-root"] if os.getuid() == 0 else []
        self.assertEqual(self.calls("mpirun"), [
            ["-q", "-n", "4", "--bind-to", "none", *root, "longhaul", "run", str(self.job), "--seed=7"]])
        self.assertEqual(self.kept("job-id"), "12\n")

    def test_mpirun_has_a_session_folder_of_its_own(self):
        temporary = self.folder / "tmp"
        temporary.mkdir()
        # Done, stopped, terminated, launcher not found: no files are left, and exit codes are the usual ones.
        for plan, code in [("0", 0), ("75", 75), ("signal TERM USR1", 75), ("127", 127)]:
            self.say("ranks", plan + "\n")
            self.run_body(code=code, TMPDIR=str(temporary), SLURM_JOB_NUM_NODES="1")
            mine, there = (self.folder / "ranks_environment").read_text().splitlines()
            self.assertEqual((Path(mine).parent, there), (temporary, "there"))
            self.assertLessEqual(len(Path(mine).name), 9)
            self.assertEqual(list(temporary.iterdir()), [])

    def test_session_folder_where_it_is_not_ours_to_choose(self):
        for environment in [{"OMPI_MCA_orte_tmpdir_base": "/x"}, {"OMPI_MCA_orte_local_tmpdir_base": "/x"},
                            {"PRTE_MCA_prte_tmpdir_base": "/x"}, {"LAUNCHER": "srun"}, {"SLURM_JOB_NUM_NODES": "2"},
                            {"TMPDIR": str(self.folder / "nowhere")}]:
            with self.subTest(**environment):
                environment = {"TMPDIR": str(self.folder), "SLURM_JOB_NUM_NODES": "1", **environment}
                self.run_body(**environment)
                self.assertEqual((self.folder / "ranks_environment").read_text().splitlines()[0], environment["TMPDIR"])

    def test_ranks_by_srun(self):
        self.run_body(LAUNCHER="srun", SLURM_CPUS_PER_TASK="3")
        self.assertEqual(self.calls("srun"), [
            ["--mpi=pmix", "-K1", "--ntasks=4", "--cpu-bind=none", "--cpus-per-task=3", "longhaul", "run", str(self.job)]])
        self.run_body(LAUNCHER="srun", SLURM_GPUS_ON_NODE="4")
        with_gpus = self.calls("srun")[1]
        self.assertEqual(with_gpus[:6], ["--mpi=pmix", "-K1", "--ntasks=4", "--cpu-bind=none", "--gpu-bind=none", "bash"])
        self.assertEqual(with_gpus[-5:], ["rank", "2", "longhaul", "run", str(self.job)])

    def test_gpus_by_rank(self):
        (self.bin / "longhaul").write_text(COMMON + 'case $1 in run) echo "gpus $CUDA_VISIBLE_DEVICES" >>"$FAKES/gpus" ;; *) exit 1 ;; esac\n')
        # A launcher that starts three ranks of a node, one after the other.
        (self.bin / "mpirun").write_text(
            '#!/bin/bash\nwhile [ "$1" != bash ]; do shift; done\n'
            'for rank in 0 1 2; do OMPI_COMM_WORLD_LOCAL_RANK=$rank "$@"; done\n')
        for gpus, ranks, shares in [("0,1,2", 3, ["0", "1", "2"]), ("4,5,6,7,8,9", 3, ["4,5", "6,7", "8,9"]), ("3", 3, ["3"] * 3),
                                    ("0,1", 3, ["0", "0", "1"])]:
            self.say("gpus", "")
            settings = {"SLURM_GPUS_ON_NODE": "x", "CUDA_VISIBLE_DEVICES": gpus, "SLURM_NTASKS": str(ranks), "SLURM_JOB_NUM_NODES": "1"}
            script = (SLURM / "longhaul.sbatch").read_text().replace("\noutput= ", f"\noutput={shlex.quote(str(self.output))} ")
            subprocess.run(["/bin/bash", "-c", script, "body", str(self.job)], capture_output=True, check=True, cwd=self.folder,
                           env={**self.environment, "SLURM_JOB_ID": "1", **settings})
            self.assertEqual((self.folder / "gpus").read_text().split("\n")[:-1], [f"gpus {share}" for share in shares])

    def test_shard_of_an_array(self):
        array = {"SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": "8", "SLURM_JOB_ID": "15"}
        self.say("ranks", "75\n")
        self.run_body(code=75, **array)
        self.assertEqual(self.calls("mpirun")[0][-1], "--shard=2/8")
        self.assertEqual(self.requeues(), [["requeue", "12_2"]])
        self.assertIn(["status", str(self.output / "shard-2-of-8"), "--progress"], self.calls("longhaul"))
        self.assertIn("code=75", self.kept("12_2.launches"))
        self.assertEqual(self.kept("job-id"), "12\n")
        self.assertIn("type: sbatch --array=0-1", self.run_body(code=2, **{**array, "SLURM_ARRAY_TASK_COUNT": "2"}))

    def test_what_follows_on_each_code(self):
        new, crashed = progress("new"), progress("crashed", tokens=5)
        for code, after, requeued, words in [
            (0, "done", False, "done"), (3, "done", False, "done"), (1, "failed", False, "an error in model, data or checkpoint"),
            (2, "new", False, "refused"), (74, "stopped", False, "storage is full"), (75, "stopped", True, "requeued"),
            (127, "new", False, "not found on the node"), (137, "crashed", True, "requeued"), (139, "crashed", True, "requeued"),
            (1, "crashed", True, "requeued"), (1, "running", True, "requeued"), (137, "stopped", True, "requeued"),
            (137, "done", False, "done, code 0"),
            # srun returns 0 if a node refused to launch the step.
            (0, "stopped", True, "requeued"), (0, "new", True, "requeued"), (0, "crashed", True, "requeued")]:
            with self.subTest(code=code, state=after):
                for name in ("calls", "12.launches"):
                    (self.folder / name).unlink(missing_ok=True)
                    (self.output / "slurm" / name).unlink(missing_ok=True)
                self.say("progress", new + progress(after, tokens=5))
                self.say("ranks", f"{code}\n")
                own = {"stopped": 75, "done": 0}.get(after, code) if code == 137 else code  # the run folder decides
                own = 1 if code == 0 and requeued else own
                self.assertIn(words, self.run_body(code=own))
                self.assertEqual(self.requeues(), [["requeue", "12"]] if requeued else [])

    def test_reason_is_kept(self):
        self.say("ranks", "74\n")
        self.run_body(code=74)
        self.assertIn("free space and submit again", self.kept("12.reason"))

    def test_gives_up_without_progress(self):
        self.say("ranks", "139\n")
        self.say("progress", progress("crashed", 3, 100))
        self.run_body(code=139)
        self.assertEqual(len(self.requeues()), 1)
        words = self.run_body(code=139, SLURM_RESTART_COUNT="1")
        self.assertIn("gave up: two launches in a row made no progress, the last with code 139", words)
        self.assertEqual(len(self.requeues()), 1)
        self.assertIn("two launches in a row", self.kept("12.reason"))
        self.assertIn("launch=2 code=139 verdict=crashed asked=nothing stalled=2 state=crashed", self.kept("12.launches"))

    def test_a_long_prompt_is_progress(self):
        self.say("ranks", "75\n")
        self.say("progress", "".join(progress("stopped", 3, 100, positions=at) for at in (5000, 9000, 9000, 13000)))
        self.run_body(code=75)
        self.run_body(code=75, SLURM_RESTART_COUNT="1")
        self.assertEqual(len(self.requeues()), 2)
        self.assertNotIn("stalled=1", self.kept("12.launches"))

    def test_ended_launches_do_not_count(self):
        self.say("progress", progress("crashed", 3, 100))
        self.say("ranks", "139\nsignal TERM\n")
        self.run_body(code=139)
        self.run_body(code=75, SLURM_RESTART_COUNT="1")
        self.assertIn("verdict=stopped asked=end stalled=1", self.kept("12.launches"))

    def test_progress_in_between_counts_anew(self):
        self.say("ranks", "139\n")
        for restart, tokens in enumerate([100, 100, 200, 200, 300]):
            self.say("progress", progress("crashed", 3, 100 if restart == 0 else tokens) + progress("crashed", 3, tokens + restart % 2))
            self.run_body(code=139, SLURM_RESTART_COUNT=str(restart))
        self.assertEqual(len(self.requeues()), 5)

    def test_unknown_progress_is_not_none(self):
        self.say("ranks", "137\n")
        for _ in range(3):
            self.run_body(code=137)
        self.assertEqual(len(self.requeues()), 3)

    def test_attempts_are_bounded(self):
        self.say("ranks", "75\n")
        self.run_body(code=75, SLURM_RESTART_COUNT="98")
        self.assertIn("gave up: not done after 100 launches", self.run_body(code=75, SLURM_RESTART_COUNT="99"))
        self.assertEqual(len(self.requeues()), 1)
        self.submit("--max-attempts=2")
        self.assertIn("gave up: not done after 2 launches", self.run_body(code=75, by_hand=False, SLURM_RESTART_COUNT="1"))

    def test_limit_is_passed_on(self):
        self.say("ranks", "signal USR1\n")
        self.run_body(code=75)
        self.assertIn(["heard", "USR1"], self.calls())
        self.assertEqual(self.requeues(), [["requeue", "12"]])

    def test_user_may_stop_it_for_good(self):
        self.say("ranks", "signal USR2\n")
        self.assertIn("stays stopped as requested", self.run_body(code=75))
        self.say("ranks", "signal USR2 USR1\n")  # the time limit comes while it saves
        self.assertIn("stays stopped as requested", self.run_body(code=75))
        self.assertEqual(self.requeues(), [])

    def test_end_is_saved_and_left_to_slurm(self):
        self.say("ranks", "signal TERM\n")
        self.assertIn("ended by TERM", self.run_body(code=75))
        self.assertIn(["heard", "USR1"], self.calls())
        self.say("stop_code", "1\n")  # of an mpirun that received TERM itself
        self.say("progress", progress("crashed", tokens=5))
        self.assertIn("ended by TERM", self.run_body(code=75))
        self.assertEqual(self.requeues(), [])

    def test_end_by_the_limit_goes_on(self):
        self.say("ranks", "signal TERM\n")
        self.say("squeue_says", "TimeLimit\n")
        self.run_body(code=75)
        self.assertEqual(self.requeues(), [["requeue", "12"]])

    def test_signal_before_the_ranks_listen(self):
        self.say("ranks", "dies\n")
        self.say("progress", progress("crashed", tokens=5) + progress("crashed", tokens=6))
        self.run_body(code=75)
        self.assertEqual(len(self.requeues()), 1)

    def test_waits_for_a_former_launch(self):
        self.say("progress", progress("running") * 3 + progress("crashed") + progress("done"))
        self.assertIn("waiting for its lease to end", self.run_body())
        self.assertEqual(len(self.calls("sleep")), 3)
        self.say("progress", progress("running"))
        self.run_body()
        self.assertEqual(len(self.calls("sleep")), 3 + 24)
        self.assertEqual(len(self.calls("mpirun")), 2)

    def test_requeue_refused(self):
        self.say("ranks", "75\n")
        self.say("scontrol_code", "1\n")
        self.assertIn("cannot be requeued here", self.run_body(code=75))
        self.assertIn("submit again to resume", self.kept("12.reason"))
        self.assertEqual(self.calls("sbatch"), [])
        self.submit("--array=8")
        array = {"SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "2", "SLURM_JOB_ID": "15", "SLURM_RESTART_COUNT": "3", "SLURM_CONF": "/c",
                 "SLURM_JOB_NUM_NODES": "1"}
        self.assertIn("submitted a follow-up job that starts when this one ends", self.run_body(code=75, by_hand=False, **array))
        script = str(self.output / "slurm" / "job.sbatch")
        self.assertEqual(self.calls("sbatch")[1], ["--dependency=afterany:15", "--array=2", script])
        environment = (self.folder / "sbatch_environment").read_text()
        self.assertIn("LONGHAUL_ATTEMPTS_BEFORE=4\n", environment)
        self.assertIn("SLURM_CONF=/c\n", environment)
        self.assertNotIn("SLURM_RESTART_COUNT", environment)
        self.assertNotIn("TMPDIR", environment)  # it is mpirun's session folder, which is gone when that job starts
        self.say("sbatch_code", "1\n")
        words = self.run_body(code=75, by_hand=False, **array)
        self.assertIn("submit again to resume: sbatch ", words)
        self.assertIn("launch 7 ", self.run_body(code=75, by_hand=False, **{**array, "LONGHAUL_ATTEMPTS_BEFORE": "3"}))

    def test_usage(self):
        run = lambda *command, **more: subprocess.run(
            ["/bin/bash", str(SLURM / "longhaul.sbatch"), *command], env={**self.environment, **more}, capture_output=True, text=True)
        self.assertIn("usage: sbatch", run(SLURM_JOB_ID="1").stderr)
        outside = run(str(self.job))
        self.assertEqual(outside.returncode, 2)
        self.assertIn("expected to run in a Slurm job", outside.stderr)
        (self.folder / "output").unlink()
        self.assertIn("no run folder", self.run_body(code=2))


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
