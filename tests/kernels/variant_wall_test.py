#!/usr/bin/env python3
"""The objects of the CPU variants must not have symbols with external inline linkage: the linker could keep the copy
that needs AVX-512 for all processors (kernels/cpu/kernel_table.hpp, "the wall").

usage: variant_wall_test.py NM OBJECT...
"""

import subprocess
import sys
from pathlib import Path

nm, objects = sys.argv[1], [Path(name) for name in sys.argv[2:]]
variants = [path for path in objects if path.name.startswith(("avx2.", "avx512"))]
if len(variants) < 2:
    sys.exit(f"variant_wall_test.py: expected the objects of avx2.cpp and avx512.cpp, got {len(variants)} of them")
weak = []
for path in variants:
    symbols = subprocess.run([nm, "-C", "--defined-only", str(path)], check=True, capture_output=True, text=True).stdout
    weak += [f"{path.name}: {line}" for line in symbols.splitlines() if line.split()[1] in ("W", "V", "u")]
if weak:
    sys.exit("the linker may keep these for every processor; make them always_inline or templates on the variant:\n" + "\n".join(weak))
print(f"{len(variants)} objects, no weak symbol")
