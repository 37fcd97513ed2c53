"""What other programs that keep the processors busy cost a run: tokens per second beside 0, 1 and as many as processors.

python3 busy_machine.py LONGHAUL JOB.cfg [--ranks 1] [--rounds 3] [KEY=VALUE ...]

Medians of alternating rounds. A fair share beside as many busy programs as processors is a half.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile


def tokens_per_second(args, folder):
    command = [args.longhaul, "run", args.job, f"--output={folder}", *[f"--{key}" for key in args.keys]]
    if args.ranks > 1:
        command = ["mpirun", "-n", str(args.ranks), *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return json.loads((folder / "summary.json").read_text())["decode_tokens_per_second"]


def beside(busy, run):
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        return run()
    finally:
        for other in others:
            other.kill()
            other.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("longhaul")
    parser.add_argument("job")
    parser.add_argument("keys", nargs="*")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_intermixed_args()
    found = {busy: [] for busy in sorted({0, 1, len(os.sched_getaffinity(0))})}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(args.rounds):
            for busy, speeds in found.items():
                out = pathlib.Path(folder) / f"{turn}-{busy}"
                speeds.append(beside(busy, lambda out=out: tokens_per_second(args, out)))
    alone = statistics.median(found[0])
    for busy, speeds in found.items():
        speed = statistics.median(speeds)
        print(f"{busy} busy programs: {speed:8.1f} tokens/s, {speed / alone:.2f} of the speed alone")


if __name__ == "__main__":
    main()
