#!/usr/bin/env python3
"""The matmuls and the attention of gpu_bench.cpp with PyTorch, in the same form: the vendor libraries' speed."""

import statistics
import sys
import time

import torch
import torch.nn.functional as F

REPEATS = 9
SHAPES = [(6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336)]


def seconds_of(calls, run):
    run(0)
    torch.cuda.synchronize()
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        for call in range(calls):
            run(call)
        torch.cuda.synchronize()
        seconds.append((time.perf_counter() - start) / calls)
    return statistics.median(seconds)


def line(what, seconds, num_bytes, operations=0.0):
    print(
        f"{what:<44} {seconds * 1e6:10.1f} us {num_bytes / seconds * 1e-9:8.0f} GB/s "
        f"{num_bytes / seconds / bandwidth:5.2f} of a copy {operations / seconds * 1e-12:8.1f} TFLOP/s",
        flush=True,
    )


def products():
    for rows in (1, 8, 64, 512):
        layer_seconds = layer_bytes = 0.0
        for outputs, inputs in SHAPES:
            num_bytes = outputs * inputs * 2
            copies = max(2, -(-300_000_000 // num_bytes))
            weights = [torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16) for _ in range(copies)]
            x = torch.randn(rows, inputs, device="cuda", dtype=torch.bfloat16)
            seconds = seconds_of(2 * copies, lambda call, x=x, w=weights: F.linear(x, w[call % len(w)]))
            line(f"torch {outputs}x{inputs}, {rows} rows", seconds, num_bytes, 2.0 * outputs * inputs * rows)
            layer_seconds += seconds
            layer_bytes += num_bytes
        line(f"torch products of 32 layers, {rows} rows", 32 * layer_seconds, 32 * layer_bytes)


def attention():
    # Four copies, like the four layers in gpu_bench. PyTorch's kernels take no tree: all nodes see the whole context.
    for context in (1000, 10_000, 100_000):
        keys = [torch.randn(1, 8, context, 128, device="cuda", dtype=torch.bfloat16) for _ in range(4)]
        values = [torch.randn_like(key) for key in keys]
        for nodes in (1, 64):
            q = torch.randn(1, 32, nodes, 128, device="cuda", dtype=torch.bfloat16)

            def run(call, q=q, keys=keys, values=values):
                F.scaled_dot_product_attention(q, keys[call % 4], values[call % 4], enable_gqa=True)

            num_bytes = context * 8 * 128 * 2 * 2
            what = f"torch attention, {context} tokens, {nodes} nodes"
            line(what, seconds_of(8, run), num_bytes, 4.0 * context * nodes * 32 * 128)


if not torch.cuda.is_available():
    sys.exit("gpu_peer: PyTorch sees no GPU")
torch.set_grad_enabled(False)
source = torch.randn(1 << 28, device="cuda")
target = torch.empty_like(source)
bandwidth = 2.0 * source.numel() * 4 / seconds_of(2, lambda call: target.copy_(source))
print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}: a copy moves {bandwidth * 1e-9:.0f} GB/s")
del source, target
failed = False
for section in (products, attention):
    try:
        section()
    except RuntimeError as error:
        print(f"error: {section.__name__}: {error}", flush=True)
        failed = True
sys.exit(failed)
