#!/usr/bin/env python3
"""The objects of the CPU variants must not have symbols with external inline linkage: the linker could keep the copy
that needs AVX-512 for all processors (kernels/cpu/kernel_table.hpp, "the wall"). And their functions must not leave the
upper halves of vector registers in use, which makes SSE instructions many times slower on processors of Intel.

usage: variant_wall_test.py NM OBJDUMP OBJECT...
"""

import re
import subprocess
import sys
from pathlib import Path

nm, objdump, objects = sys.argv[1], sys.argv[2], [Path(name) for name in sys.argv[3:]]
variants = [path for path in objects if path.name.startswith(("avx2.", "avx512"))]
expected = {"avx2", "avx512", "avx512_bf16"}
if {path.name.split(".")[0] for path in variants} != expected:
    sys.exit(f"variant_wall_test.py: expected the objects of {sorted(expected)}, got {[path.name for path in variants]}")


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def leaves_upper_halves(path):
    """Functions with wide registers that never clear their upper halves."""
    functions = re.split(r"^[0-9a-f]+ <(.*)>:$", output_of(objdump, "-d", "-C", "--no-show-raw-insn", str(path)), flags=re.M)
    for name, code in zip(functions[1::2], functions[2::2]):
        if re.search(r"%[yz]mm([0-9]|1[0-5])\b", code) and "ret" in code and "vzeroupper" not in code:
            yield name


weak, dirty = [], []
for path in variants:
    symbols = output_of(nm, "-C", "--defined-only", str(path))
    weak += [f"{path.name}: {line}" for line in symbols.splitlines() if line.split()[1] in ("W", "V", "u")]
    dirty += [f"{path.name}: {name}" for name in leaves_upper_halves(path)]
if weak:
    sys.exit("the linker may keep these for every processor; make them always_inline or templates on the variant:\n" + "\n".join(weak))
if dirty:
    sys.exit("these use wide registers without vzeroupper; make functions with vectors as arguments always_inline:\n" + "\n".join(dirty))
print(f"{len(variants)} objects, no weak symbol, no function without vzeroupper")
