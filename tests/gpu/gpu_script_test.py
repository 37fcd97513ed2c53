#!/usr/bin/env python3
"""tests/gpu.sh with fake programs: whatever they do, the summary is complete. Needs no GPU."""

import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import unittest
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent

LINE = re.compile(r"(PASS|FAIL|TIMEOUT|SKIP|NOT RUN) +(\d+\.\d) s  (\S+) *(.*)")

# A GoogleTest program with three suites. A test of Bad fails only in company; one of Hangs never ends.
GPU_TEST = r"""#!/bin/bash
if [ "$1" = --gtest_list_tests ]; then
  for suite in Good Bad Hangs; do
    printf 'Devices/%s.\n  Works/cuda  # GetParam() = cuda\n  Fails/cuda_exact  # GetParam() = cuda_exact\n' $suite
  done
  exit 0
fi
case $1 in
  *Good*)
    echo '[  PASSED  ] 2 tests.' ;;
  '--gtest_filter=Devices/Bad.Fails/cuda_exact')
    echo '[  PASSED  ] 1 test.' ;;
  *Bad*)
    echo '[ RUN      ] Devices/Bad.Works/cuda'
    echo '[       OK ] Devices/Bad.Works/cuda (1 ms)'
    echo '[ RUN      ] Devices/Bad.Fails/cuda_exact'
    echo 'C++ exception with description "no such kernel" thrown in the test body.'
    echo '[  FAILED  ] Devices/Bad.Fails/cuda_exact, where GetParam() = cuda_exact (1 ms)'
    exit 1 ;;
  *Hangs*)
    echo '[ RUN      ] Devices/Hangs.Works/cuda'
    sleep 60 ;;
esac
"""
# Sections of gpu_bench: one that fails, one that ignores the signal that should end it (with STUBBORN=yes).
GPU_BENCH = r"""#!/bin/bash
case $1 in
  --only=attention) echo 'error: attention: out of memory'; exit 1 ;;
  --only=choices) if [ -n "$STUBBORN" ]; then trap '' TERM; fi; while true; do sleep 1; done ;;
  --only=smoke) echo 'cuda, GPU 0: a copy moves 4000 GB/s, tensor cores on registers alone 900.0 TFLOP/s' ;;
  --only=rows) echo 'nothing measured' ;;
  *) echo 'noise'; echo 'all-reduce of 32 layers, host memory, 8b,   1 rows  12.0 us'; echo 'tree 64 rows, 32 layers' ;;
esac
"""
# Shows the summary as it is while the program runs, and the table of `bench passes`.
LONGHAUL = r"""#!/bin/bash
cat "$RESULTS/summary.txt"
echo '  decode         1       512       4.00      250.0   3100.00    4000.00      80.0        900000.0     70.0'
echo '  verify        64       512       5.00    12800.0   3000.00    4000.00      80.0        900000.0     70.0'
echo '  prefill     8192         0     100.00    81920.0    160.00    4000.00  445600.0        900000.0     70.0'
while [ $# -gt 0 ]; do case $1 in --output=*) mkdir -p "${1#--output=}" && echo text >"${1#--output=}/results.jsonl" ;; esac; shift; done
"""
ENGINE_TEST = r"""#!/bin/bash
if [ "$1" = --gtest_list_tests ]; then printf 'Devices/Other.\n  A/cuda  # x\n  B/cuda  # x\n  A/cuda_cublas  # x\n'; exit 0; fi
case $1 in
  */cuda) echo '[  PASSED  ] 2 tests.' ;;
  *) printf 'a.cpp:7: Skipped\ncuda_cublas needs cuBLASLt\n\n[  SKIPPED ] x (0 ms)\n[  PASSED  ] 0 tests.\n' ;;
esac
"""
NVIDIA_SMI = '#!/bin/bash\necho "GPU 0: NVIDIA Fake, 1980 MHz"\n'
BENCH_STEPS = ["layers", "products", "attention", "prompt", "tree"]
BENCH_STEPS += ["choices", "rows", "collectives", "layers-single", "host-memory"]
MORE_STEPS = ["products-int8", "products-int4", "attention-int8", "products-cublas", "prompt-cublas"]


def write_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class GpuScript(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.results = self.root / "results"
        (self.root / "tests").mkdir()
        shutil.copy(TESTS / "gpu.sh", self.root / "tests/gpu.sh")
        shutil.copytree(TESTS / "gpu", self.root / "tests/gpu")
        write_program(self.root / "path/nvidia-smi", NVIDIA_SMI)
        write_program(self.root / "path/python3", "#!/bin/bash\nexit 1\n")  # no torch
        write_program(self.root / "path/ldconfig", "#!/bin/bash\necho libcublasLt.so.13\n")

    def pack(self, **changed):
        programs = {"gpu_test": GPU_TEST, "gpu_engine_test": ENGINE_TEST, "gpu_bench": GPU_BENCH, "longhaul": LONGHAUL}
        for name, text in {**programs, **changed}.items():
            write_program(self.root / "programs/bin" / name, text)
        (self.root / "programs/commit").write_text("abc123\n")
        (self.root / "build-gpu").mkdir()
        with tarfile.open(self.root / "build-gpu/programs.tar.xz", "w:xz") as archive:
            archive.add(self.root / "programs", "programs")

    def run_script(self, **environment):
        """Returns the exit code and the steps by name, with verdict, seconds and headline."""
        path = f"{self.root}/path:/usr/bin:/bin"
        result = subprocess.run(
            [self.root / "tests/gpu.sh"],
            env={"PATH": path, "HOME": os.environ.get("HOME", "/"), "RESULTS": str(self.results), **environment},
            check=False,
            capture_output=True,
            text=True,
            timeout=100,
        )
        self.assertEqual(result.stderr, "")
        self.head, self.counts, *lines = (self.results / "summary.txt").read_text().splitlines()
        steps = {}
        for line in lines:
            found = LINE.fullmatch(line)
            self.assertTrue(found, line)
            self.assertNotIn(found[3], steps)
            steps[found[3]] = (found[1], float(found[2]), found[4])
        return result.returncode, steps

    def logs(self):
        with tarfile.open(self.results / "logs.tar.gz") as archive:
            return {member.name: archive.extractfile(member).read().decode() for member in archive}

    def test_every_step_has_its_line(self):
        self.pack()
        code, steps = self.run_script(STEP_LIMIT="1", STUBBORN="yes")
        self.assertEqual(code, 1)
        self.assertRegex(self.head, r"^longhaul abc123, GPU 0: NVIDIA Fake, 1980 MHz, 20\d\d-")
        self.assertEqual(
            list(steps),
            ["smoke/driver", "smoke/smoke", "kernels/Good", "kernels/Bad", "kernels/alone/Devices.Bad.Fails.cuda_exact"]
            + ["kernels/Hangs", "kernels/alone/Devices.Hangs.Works.cuda"]
            + [f"bench/{name}" for name in BENCH_STEPS]
            + ["passes/8b", "text/exact", "text/drafts", "text/cublas", "engine/Other.cuda", "engine/Other.cuda_cublas"]
            + ["peers/pytorch", "peers/llama.cpp", "ncu/all", "sanitizer/all"]
            + [f"more/{name}" for name in MORE_STEPS]
            + [f"targets/{name}" for name in ("decode", "verify", "attention", "prefill")],
        )
        verdict = {name: step[0] for name, step in steps.items()}
        self.assertEqual(steps["kernels/Good"][2], "[ PASSED ] 2 tests.")
        self.assertEqual(verdict["kernels/Bad"], "FAIL")
        self.assertIn("no such kernel", steps["kernels/Bad"][2])
        self.assertEqual(verdict["kernels/alone/Devices.Bad.Fails.cuda_exact"], "PASS")
        self.assertEqual(verdict["kernels/Hangs"], "TIMEOUT")
        self.assertGreaterEqual(steps["kernels/Hangs"][1], 1)
        self.assertEqual(steps["bench/attention"][::2], ("FAIL", "error: attention: out of memory"))
        self.assertEqual(verdict["bench/choices"], "TIMEOUT")
        self.assertGreaterEqual(steps["bench/choices"][1], 5, "five seconds between the signals")
        products = "all-reduce of 32 layers, host memory, 8b, 1 rows 12.0 us; tree 64 rows, 32 layers"
        self.assertEqual(steps["bench/products"][::2], ("PASS", products))
        self.assertEqual(steps["bench/rows"][::2], ("FAIL", "its log has no line with 1 rows"))
        self.assertEqual(verdict["bench/host-memory"], "PASS")
        self.assertIn("plain and together are equal", steps["text/drafts"][2])
        self.assertEqual(verdict["engine/Other.cuda"], "PASS")
        self.assertEqual(steps["engine/Other.cuda_cublas"][::2], ("SKIP", "cuda_cublas needs cuBLASLt"))
        self.assertEqual(steps["targets/decode"][0], "PASS")
        self.assertRegex(steps["targets/decode"][2], r"^0.78, wanted >= 0.75: ")
        self.assertRegex(steps["targets/verify"][2], r"^1.25, wanted <= 1.3: ")
        self.assertRegex(steps["targets/prefill"][2], r"^0.45, wanted >= 0.45: ")
        self.assertEqual(verdict["targets/attention"], "FAIL")
        self.assertRegex(steps["targets/attention"][2], r"^not measured, ")
        counts = [list(verdict.values()).count(kind) for kind in ("PASS", "FAIL", "TIMEOUT", "SKIP", "NOT RUN")]
        self.assertRegex(self.counts, r"^done, \d+ s: {} passed, {} failed, {} stopped.*, {} skipped, {} not".format(*counts))
        logs = self.logs()
        self.assertEqual(len(logs), len(steps) - counts[3] + 1 - 4, "of all but what was not there; of the skipped suite; not of targets")
        self.assertIn("exit status 1", logs["bench-attention.log"])
        self.assertIn("FAIL      ", logs["passes-8b.log"], "the summary is there while steps run")
        self.assertEqual(sorted(path.name for path in self.results.iterdir()), ["logs.tar.gz", "summary.txt"])

    def test_at_the_deadline_steps_are_not_run(self):
        self.pack(longhaul="#!/bin/bash\nsleep 60\n", gpu_test="#!/bin/bash\nexit 127\n")
        code, steps = self.run_script(STEP_LIMIT="3", DEADLINE="4")
        self.assertEqual(code, 1)
        self.assertEqual(steps["kernels/gpu_test"][0], "FAIL")
        self.assertEqual(steps["bench/choices"][0], "TIMEOUT")
        self.assertEqual(steps["more/products-int4"][0], "NOT RUN")
        self.assertEqual(steps["engine/Other.cuda"][0], "NOT RUN")
        self.assertLess(sum(step[1] for step in steps.values()), 4 + 6)

    def test_without_a_gpu_everything_is_tried_once(self):
        self.pack(gpu_bench='#!/bin/bash\necho "error: smoke: no CUDA-capable device is detected"\nexit 1\n')
        write_program(self.root / "path/nvidia-smi", "#!/bin/bash\necho no devices\nexit 9\n")
        code, steps = self.run_script(STEP_LIMIT="1")
        self.assertEqual(code, 1)
        self.assertEqual(steps["smoke/driver"][::2], ("FAIL", "no devices"))
        self.assertEqual(steps["smoke/smoke"][2], "error: smoke: no CUDA-capable device is detected")
        self.assertEqual(steps["kernels/Bad"][0], "FAIL")
        self.assertFalse([name for name in steps if "alone" in name])

    def test_without_programs_gpu_bench_is_built(self):
        cmake = '#!/bin/bash\necho "-- The CUDA compiler is fake"; echo Linking; mkdir -p build-gpu/kernels\ncp fake build-gpu/kernels/gpu_bench\n'
        write_program(self.root / "fake", GPU_BENCH)
        write_program(self.root / "path/cmake", cmake)
        code, steps = self.run_script(STEP_LIMIT="1")
        self.assertEqual(code, 1)
        self.assertEqual(steps["build/configure"][::2], ("PASS", "-- The CUDA compiler is fake"))
        self.assertEqual(steps["bench/products"][0], "PASS")
        self.assertFalse([name for name in steps if name.startswith(("kernels", "engine", "passes", "text", "sanit"))])


if __name__ == "__main__":
    unittest.main()
