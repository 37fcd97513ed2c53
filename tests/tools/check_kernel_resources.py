#!/usr/bin/env python3
"""Fails if a hot GPU kernel spills registers, needs a stack frame, or waits for each of its wgmma.

    check_kernel_resources.py LOG ARCHITECTURE…

LOG is the output of a build with -Xptxas=-v (preset cuda), ARCHITECTURE for example sm_90. All slow a kernel down several
times without changing a result, so no other test notices. A kernel of the list that the log does not have for every
architecture is a fault, too: it was renamed, or not compiled.
"""

import re
import sys
from pathlib import Path

# All instantiations of the kernels that take most of the time of a pass with kernels = cuda. NAME@ARCHITECTURE: others do not
# run the kernel.
HOT_KERNELS = [
    "stream_matmul",
    "tile_matmul",
    "cluster_matmul@sm_90a",
    "slice_matmul@sm_90a",
    "quantized_matmul",
    "quantize_inputs",
    "tensor_kernel",
    "warpgroup_kernel@sm_90a",
    "merge_kernel",
    "merge_few_kernel",
    "rope_store_kernel",
    "head_norm_kernel",
    "head_squares_kernel",
    "whole_norm_kernel",
    "rms_norm_kernel",
    "map_kernel",
    "sum_kernel",
    "delta_convolve_kernel",
    "delta_text_kernel",
    "delta_nodes_kernel",
    "delta_accept_kernel",
]

ENTRY = re.compile(r"Compiling entry function '(\w+)' for '(\w+)'")
USE = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
SERIALIZED = re.compile(r"wgmma.mma_async instructions are serialized (.*) in the function '(\w+)'")


def uses_of(log):
    """{(mangled name, architecture): (stack frame, spill stores, spill loads)}, in bytes."""
    uses = {}
    entry = None
    for line in log.splitlines():
        if found := ENTRY.search(line):
            entry = found.groups()
        elif entry and (found := USE.search(line)):
            uses[entry] = tuple(int(number) for number in found.groups())
            entry = None
    return uses


def faults_of(log, architectures, kernels=HOT_KERNELS):
    uses = uses_of(log)
    faults = []
    for reason, name in SERIALIZED.findall(log):
        faults.append(f"expected wgmma to run on while a kernel goes on, got them one by one {reason} in {name}")
    for kernel in kernels:
        kernel, _, only = kernel.partition("@")
        # As mangled: the length of the name, the name, then its template arguments or the end of the nested name.
        part = re.compile(rf"{len(kernel)}{kernel}[IE]")
        for architecture in (a for a in architectures if only in ("", a)):
            mine = {name: use for (name, arch), use in uses.items() if arch == architecture and part.search(name)}
            if not mine:
                faults.append(f"{kernel}: expected it in the log for {architecture}, got none; update HOT_KERNELS")
            for name, (stack, stores, loads) in mine.items():
                if stack or stores or loads:
                    faults.append(
                        f"{kernel}: expected no stack frame and no spills for {architecture}, got {stack} bytes of stack, "
                        f"{stores} of spill stores, {loads} of spill loads in {name}"
                    )
    return faults


def main():
    log, architectures = Path(sys.argv[1]), sys.argv[2:]
    if not architectures:
        sys.exit("usage: check_kernel_resources.py LOG ARCHITECTURE…")
    faults = faults_of(log.read_text(), architectures)
    for fault in faults:
        print(f"{log}: {fault}", file=sys.stderr)
    if faults:
        sys.exit(1)
    print(f"{len(HOT_KERNELS)} hot kernels for {', '.join(architectures)}: no stack frames, no spills")


if __name__ == "__main__":
    main()
