"""Runs the real program under mpirun, with a tiny generated model. Standard library only.

Each case gets its own folder. Output goes to files, every wait is for a condition with a time limit, and no started
process may be left at the end.
"""

import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DEMO_MODEL = REPOSITORY / "jobs" / "demo" / "model"
TIME_LIMIT = 120.0


class Failure(AssertionError):
    pass


def check(condition, message):
    if not condition:
        raise Failure(message)


def bf16(values):
    """Floats truncated to bfloat16: good enough for random weights."""
    return b"".join(struct.pack("<f", value)[2:] for value in values)


def make_tiny_model(folder, layers=2, hidden=32, intermediate=64, heads=8, kv_heads=4, seed=7, context=16384, padding=0):
    """Writes a Llama folder of random weights with the demo's tokenizer: loads in milliseconds, TP 8 divides its heads.

    `padding`: extra rows after those of the tokenizer's ids; it does not change the other weights.
    """
    folder.mkdir(parents=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO_MODEL / name, folder / name)
    vocab = json.loads((DEMO_MODEL / "config.json").read_text())["vocab_size"]
    head_dim = hidden // heads
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab + padding, "hidden_size": hidden,
        "intermediate_size": intermediate, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head_dim, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "max_position_embeddings": context, "tie_word_embeddings": True,
        "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 0,
    }
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens.weight": [vocab, hidden], "model.norm.weight": [hidden]}
    for layer in range(layers):
        stem = f"model.layers.{layer}."
        shapes[stem + "input_layernorm.weight"] = [hidden]
        shapes[stem + "post_attention_layernorm.weight"] = [hidden]
        shapes[stem + "self_attn.q_proj.weight"] = [heads * head_dim, hidden]
        shapes[stem + "self_attn.k_proj.weight"] = [kv_heads * head_dim, hidden]
        shapes[stem + "self_attn.v_proj.weight"] = [kv_heads * head_dim, hidden]
        shapes[stem + "self_attn.o_proj.weight"] = [hidden, heads * head_dim]
        shapes[stem + "mlp.gate_proj.weight"] = [intermediate, hidden]
        shapes[stem + "mlp.up_proj.weight"] = [intermediate, hidden]
        shapes[stem + "mlp.down_proj.weight"] = [hidden, intermediate]
    numbers = random.Random(seed)
    header, parts, offset = {}, [], 0
    for name, shape in shapes.items():
        count = 1
        for size in shape:
            count *= size
        norm = name.endswith("norm.weight")
        data = bf16([1.0] * count if norm else [numbers.gauss(0, 0.3) for _ in range(count)])
        if "embed_tokens" in name:
            others = random.Random(seed + 1000)
            data += bf16([others.gauss(0, 0.3) for _ in range(padding * hidden)])
            shape = [vocab + padding, hidden]
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + len(data)]}
        parts.append(data)
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))
    return folder


def make_adapter(folder, seed, layers=2, hidden=32, alpha=8):
    """Writes a LoRA adapter for the attention of make_tiny_model, as PEFT does."""
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": alpha, "bias": "none"}))
    numbers = random.Random(seed)
    header, parts, offset = {}, [], 0
    for layer in range(layers):
        for matrix in ("q_proj", "o_proj"):
            for part, shape in (("A", [4, hidden]), ("B", [hidden, 4])):
                data = bf16([numbers.gauss(0, 0.3) for _ in range(4 * hidden)])
                name = f"base_model.model.model.layers.{layer}.self_attn.{matrix}.lora_{part}.weight"
                header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + len(data)]}
                parts.append(data)
                offset += len(data)
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))
    return folder


def make_prompts(path, count, words=6, seed=3):
    vocabulary = "the sea ship night wind captain said house little day was and a of in old man light came went".split()
    numbers = random.Random(seed)
    lines = []
    for index in range(count):
        prompt = " ".join(numbers.choice(vocabulary) for _ in range(numbers.randint(1, words)))
        lines.append(json.dumps({"id": f"item-{index}", "prompt": prompt}))
    path.write_text("\n".join(lines) + "\n")
    return path


class Finished:
    def __init__(self, code, output, errors, seconds):
        self.code, self.output, self.errors, self.seconds = code, output, errors, seconds

    def error_lines(self):
        return [line for line in self.errors.splitlines() if line.startswith("error:")]


class Launch:
    """A running mpirun."""

    def __init__(self, command, folder, environment):
        self.command = command
        self.start = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)
        number = len(list(folder.glob("*.err")))
        self.out_path, self.err_path = folder / f"{number}.out", folder / f"{number}.err"
        with open(self.out_path, "wb") as out, open(self.err_path, "wb") as err:
            self.process = subprocess.Popen(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL,
                                            env=environment, start_new_session=True)

    def alive(self):
        return self.process.poll() is None

    def signal(self, number):
        self.process.send_signal(number)

    @contextlib.contextmanager
    def frozen(self):
        """Context manager: the ranks are stopped (SIGSTOP) inside it."""
        pids = self.rank_pids()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)

    def rank_pids(self):
        """The pids of the program started by this mpirun, in rank order."""
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                stat = Path("/proc", entry, "stat").read_text()
                if int(stat[stat.rindex(")") + 4:].split()[0]) != self.process.pid:
                    continue
                variables = Path("/proc", entry, "environ").read_bytes().split(b"\0")
            except (OSError, ValueError):
                continue
            rank = [v for v in variables if v.startswith(b"OMPI_COMM_WORLD_RANK=")]
            if rank:
                found.append((int(rank[0].split(b"=")[1]), int(entry)))
        return [pid for _, pid in sorted(found)]

    def kill_all(self):
        """Sends SIGKILL to the launcher and all ranks at once."""
        pids = self.rank_pids()
        for pid in [self.process.pid] + pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.wait(TIME_LIMIT)
        wait_for(lambda: not any(runs(pid) for pid in pids), "killed ranks are gone", 20)

    def wait(self, limit=TIME_LIMIT):
        try:
            code = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.kill_all()
            raise Failure(f"still running after {limit} s: {' '.join(self.command)}\n" + self.err_path.read_text())
        return Finished(code, self.out_path.read_text(errors="replace"), self.err_path.read_text(errors="replace"),
                        time.monotonic() - self.start)


def runs(pid):
    """Whether a process runs. A zombie does not: its new parent may take a second to reap it."""
    try:
        stat = Path("/proc", str(pid), "stat").read_text()
    except OSError:
        return False
    return stat[stat.rindex(")") + 2] != "Z"


def wait_for(condition, what, limit=60.0, pause=0.02):
    end = time.monotonic() + limit
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(pause)
    raise Failure(f"timed out after {limit} s: {what}")


def folder_in_memory():
    """Where there is room for it, tests write to memory: they kill processes, not machines, and how long a busy disk takes
    to sync must not decide how much a kill costs. None: the usual folder for temporary files.
    """
    memory = Path("/dev/shm")
    room = os.access(memory, os.W_OK) and shutil.disk_usage(memory).free >= 4 << 30
    return memory if room else None


class Bench:
    """The folder, program and model of a case."""

    def __init__(self, binary):
        self.binary = str(Path(binary).resolve())
        self.folder = Path(tempfile.mkdtemp(prefix="longhaul-test-", dir=folder_in_memory()))
        self.model = make_tiny_model(self.folder / "model")
        self.launches = []

    def close(self):
        for launch in self.launches:
            if launch.alive():
                launch.kill_all()
        shutil.rmtree(self.folder, ignore_errors=True)

    def job(self, name="job.cfg", **keys):
        """Writes a job file with defaults for tests; `keys` with _ in place of -."""
        values = {"task": "prompts", "data": self.folder / "prompts.jsonl", "model": self.model,
                  "output": self.folder / "run", "max-tokens": 8, "ignore-eos": "true", "batch": 2, "threads": 1,
                  "temperature": 0.8, "checkpoint-tokens": 100000, "checkpoint-seconds": 1000}
        values.update({key.replace("_", "-"): value for key, value in keys.items()})
        path = self.folder / name
        path.write_text("".join(f"{key} = {value}\n" for key, value in values.items()))
        return path

    def start(self, job, ranks, *options, mpi=(), verb="run"):
        """Starts the program under mpirun. `ranks`: a number, or a list with the working folder of each rank."""
        environment = dict(os.environ, LONGHAUL_PROGRESS="plain")
        if os.geteuid() == 0:
            environment.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        program = [self.binary, verb, str(job), *options]
        command = ["mpirun", "-q", "--oversubscribe", *mpi]
        if isinstance(ranks, int):
            command += ["-n", str(ranks), *program]
        else:
            for number, folder in enumerate(ranks):
                command += [*([":"] if number else []), "-n", "1", "--wdir", str(folder), *program]
        launch = Launch(command, self.folder / "launches", environment)
        self.launches.append(launch)
        return launch

    def run(self, job, ranks, *options, mpi=(), limit=TIME_LIMIT, verb="run"):
        return self.start(job, ranks, *options, mpi=mpi, verb=verb).wait(limit)

    def command(self, *arguments):
        done = subprocess.run([self.binary, *map(str, arguments)], capture_output=True, text=True, timeout=TIME_LIMIT)
        return Finished(done.returncode, done.stdout, done.stderr, 0)


def results(run):
    return [json.loads(line) for line in (Path(run) / "results.jsonl").read_text().splitlines()]


def statistics(run):
    return [json.loads(line) for line in (Path(run) / "stats.jsonl").read_text().splitlines()]


def digest(run):
    return hashlib.sha256((Path(run) / "results.jsonl").read_bytes()).hexdigest()


def journal_keys(run):
    """(index, sample) of every line recorded by any replica of any launch."""
    keys = []
    for path in sorted((Path(run) / "results").glob("*.jsonl")):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            keys.append((record["index"], record["sample"]))
    return keys


def main(cases):
    """usage: FILE.py BINARY CASE [COUNT [SEED]]"""
    if len(sys.argv) < 3 or sys.argv[2] not in cases:
        print(f"usage: {sys.argv[0]} BINARY {{{','.join(cases)}}} [COUNT [SEED]]", file=sys.stderr)
        return 2
    bench = Bench(sys.argv[1])
    start = time.monotonic()
    try:
        cases[sys.argv[2]](bench, *map(int, sys.argv[3:]))
        print(f"PASS {sys.argv[2]} ({time.monotonic() - start:.1f} s)")
        return 0
    except Failure as failure:
        print(f"FAIL {sys.argv[2]}: {failure}", file=sys.stderr)
        for path in sorted((bench.folder / "launches").glob("*.err"))[-2:]:
            print(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}", file=sys.stderr)
        return 1
    finally:
        bench.close()
