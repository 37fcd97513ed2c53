#!/usr/bin/env python3
"""Question: how fast is longhaul compared with llama.cpp and transformers, at the same shape, threads and precision?

usage: compare_peers.py LONGHAUL [--shape 1.1b] [--precision bf16|int8|int4] [--threads 2] [--repeats 3]
                        [--peers llama.cpp transformers transformers-fp32]

Needs `pip install llama-cpp-python gguf numpy`, for transformers also `torch transformers`. Weights are random: only
time is measured. All programs are loaded at the same time and run alternately, one number of rows after another, with
longhaul stopped (SIGSTOP) meanwhile, because on shared machines the memory speed may change within seconds. Prints
medians over the rounds, and medians of the ratios within each round. llama.cpp's formats: bf16 as BF16, int8 as Q8_0,
int4 as Q4_0 (all matrices; longhaul keeps embedding and head in int8). transformers runs in bf16, which is slow in
PyTorch on a processor without bf16 instructions; transformers-fp32 reads twice the bytes, and is what users choose
there.

`pass` is decoding (1 row) and verification (n rows at once after 512 positions); `prefill` is 1024 tokens in one call.
"""

import argparse
import ctypes
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SHAPES = {  # vocabulary, hidden, intermediate, layers, heads, KV heads, head dimension, tied
    "135m": (49152, 576, 1536, 30, 9, 3, 64, True),
    "1.1b": (32000, 2048, 5632, 22, 32, 4, 64, False),
    "3b": (128256, 3072, 8192, 28, 24, 8, 128, True),
}
CONTEXT = 512
ROWS = [1, 2, 4, 8, 16, 32]
PREFILL = 1024


def write_gguf(path, shape, precision):
    """Writes a Llama of random weights without a vocabulary."""
    import gguf

    vocab, hidden, intermediate, layers, heads, kv_heads, head_dim, tied = shape
    kind = {"bf16": gguf.GGMLQuantizationType.BF16, "int8": gguf.GGMLQuantizationType.Q8_0, "int4": gguf.GGMLQuantizationType.Q4_0}[precision]
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(131072)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(intermediate)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(head_dim)
    writer.add_vocab_size(vocab)
    writer.add_tokenizer_model("no_vocab")
    random = np.random.default_rng(1)
    block = random.standard_normal((64, max(hidden, intermediate)), dtype=np.float32) * 0.02

    def matrix(name, rows, columns):
        values = np.tile(block[:, :columns], (rows // 64 + 1, 1))[:rows]
        data = gguf.quants.quantize(values, kind)
        writer.add_tensor(name, data, raw_dtype=kind)

    def ones(name, size):
        writer.add_tensor(name, np.ones(size, dtype=np.float32))

    matrix("token_embd.weight", vocab, hidden)
    ones("output_norm.weight", hidden)
    if not tied:
        matrix("output.weight", vocab, hidden)
    for i in range(layers):
        stem = f"blk.{i}."
        ones(stem + "attn_norm.weight", hidden)
        ones(stem + "ffn_norm.weight", hidden)
        matrix(stem + "attn_q.weight", heads * head_dim, hidden)
        matrix(stem + "attn_k.weight", kv_heads * head_dim, hidden)
        matrix(stem + "attn_v.weight", kv_heads * head_dim, hidden)
        matrix(stem + "attn_output.weight", hidden, heads * head_dim)
        matrix(stem + "ffn_gate.weight", intermediate, hidden)
        matrix(stem + "ffn_up.weight", intermediate, hidden)
        matrix(stem + "ffn_down.weight", hidden, intermediate)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaCpp:
    name = "llama.cpp"

    def __init__(self, shape, precision, threads, folder):
        import llama_cpp

        path = Path(folder) / "model.gguf"
        write_gguf(path, shape, precision)
        self.api = llama_cpp
        quiet = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
        llama_cpp.llama_log_set(quiet, None)
        self.quiet = quiet
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = 4096, PREFILL, 512
        params.n_threads = params.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        if not self.context:
            sys.exit("compare_peers.py: llama.cpp refused the model it was given")
        self.filled = 0

    def run(self, first, count, all_logits):
        """Seconds of one llama_decode call over `count` tokens from position `first`."""
        batch = self.api.llama_batch_init(count, 0, 1)
        batch.n_tokens = count
        for i in range(count):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = 100 + i % 100, first + i, 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = all_logits or i + 1 == count
        start = time.perf_counter()
        if self.api.llama_decode(self.context, batch) != 0:
            sys.exit("compare_peers.py: llama_decode failed")
        self.api.llama_synchronize(self.context)
        seconds = time.perf_counter() - start
        self.api.llama_batch_free(batch)
        return seconds

    def forget(self, first):
        self.api.llama_memory_seq_rm(self.api.llama_get_memory(self.context), 0, first, -1)

    def prefill(self):
        self.forget(0)
        self.filled = 0
        return self.run(0, PREFILL, False)

    def passes(self, rows):
        if self.filled != CONTEXT:
            self.forget(0)
            self.run(0, CONTEXT, False)
            self.filled = CONTEXT
        times = []
        for _ in range(5):
            times.append(self.run(CONTEXT, rows, True))
            self.forget(CONTEXT)
        return statistics.median(times)


class Transformers:
    name, dtype = "transformers", "bfloat16"

    def __init__(self, shape, _precision, threads, _folder):
        import torch
        from transformers import LlamaConfig, LlamaForCausalLM

        vocab, hidden, intermediate, layers, heads, kv_heads, head_dim, tied = shape
        torch.set_num_threads(threads)
        config = LlamaConfig(vocab_size=vocab, hidden_size=hidden, intermediate_size=intermediate, num_hidden_layers=layers,
                             num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=head_dim, tie_word_embeddings=tied)
        torch.set_default_dtype(getattr(torch, self.dtype))
        self.torch, self.model, self.cache = torch, LlamaForCausalLM(config).eval(), None
        self.prompt = torch.arange(PREFILL)[None] % 1000

    def prefill(self):
        with self.torch.inference_mode():
            start = time.perf_counter()
            self.model(self.prompt, logits_to_keep=1, use_cache=True)
            return time.perf_counter() - start

    def passes(self, rows):
        times = []
        with self.torch.inference_mode():
            if self.cache is None:
                self.cache = self.model(self.prompt[:, :CONTEXT], logits_to_keep=1, use_cache=True).past_key_values
            for _ in range(3):
                start = time.perf_counter()
                self.model(self.prompt[:, :rows], past_key_values=self.cache, use_cache=True)
                times.append(time.perf_counter() - start)
                self.cache.crop(-rows)
        return statistics.median(times)


class TransformersFp32(Transformers):
    name, dtype = "transformers-fp32", "float32"


PEERS = {peer.name: peer for peer in (LlamaCpp, Transformers, TransformersFp32)}


class Longhaul:
    """A `longhaul bench` process that is stopped (SIGSTOP) except while its next line is read."""

    def __init__(self, args, what, *options):
        command = [args.longhaul, "bench", what, *options, f"--rounds={args.repeats}", f"--shape={args.shape}",
                   f"--precision={args.precision}", f"--threads={args.threads}"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def line_of(self, rows):
        """Seconds per pass of `rows` rows, from the next output line about them."""
        self.process.send_signal(signal.SIGCONT)
        for line in self.process.stdout:
            words = line.split()
            if words[:1] == [str(rows)]:
                self.process.send_signal(signal.SIGSTOP)
                return float(words[2]) * 1e-3
        sys.exit("compare_peers.py: longhaul bench ended early")

    def __enter__(self):
        return self

    def __exit__(self, *_):  # the process may be stopped
        self.process.kill()
        self.process.wait()


def compare(args, peers):
    """{(what, rows): for each round, a list of the seconds of all programs}"""
    seconds = {}
    with Longhaul(args, "verify") as ours:
        for _ in range(args.repeats):
            for rows in ROWS:
                seconds.setdefault(("pass", rows), []).append([ours.line_of(rows)] + [peer.passes(rows) for peer in peers])
    with Longhaul(args, "prefill", f"--rows={PREFILL}") as ours:
        for _ in range(args.repeats):
            seconds.setdefault(("prefill", PREFILL), []).append([ours.line_of(PREFILL)] + [peer.prefill() for peer in peers])
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("longhaul")
    parser.add_argument("--shape", choices=SHAPES, default="1.1b")
    parser.add_argument("--precision", choices=["bf16", "int8", "int4"], default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=["llama.cpp"])
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # else a stopped process would be left
    if args.precision != "bf16" and args.peers != ["llama.cpp"]:
        parser.error("transformers is compared with --precision bf16 alone")
    with tempfile.TemporaryDirectory() as folder:
        peers = [PEERS[name](SHAPES[args.shape], args.precision, args.threads, folder) for name in args.peers]
        names = ["longhaul"] + [peer.name for peer in peers]
        seconds = compare(args, peers)
    print(f"shape {args.shape}, {args.precision}, {args.threads} threads, medians of {args.repeats} rounds; ratio: the peer's time over longhaul's")
    print(f"{'':16}" + "".join(f"{name + ' ms':>21}" for name in names) + "".join(f"{'x ' + name:>21}" for name in names[1:]))
    for (what, rows), rounds in seconds.items():
        medians = [statistics.median(one[i] for one in rounds) for i in range(len(names))]
        ratios = [statistics.median(one[i] / one[0] for one in rounds) for i in range(1, len(names))]
        print(f"{what + ' ' + str(rows):16}" + "".join(f"{m * 1e3:21.1f}" for m in medians) + "".join(f"{r:21.2f}" for r in ratios))


if __name__ == "__main__":
    main()
