"""jobs/convert_gguf.py: what it writes, and the one-line errors.

    convert_gguf_test.py Files        the file and the folder, with empty modules in place of the libraries
    convert_gguf_test.py Conversion   tensors, tokenizer and positions; needs torch, transformers 5, accelerate and gguf in this Python
"""

import contextlib
import importlib.util
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
SCRIPT = REPOSITORY / "jobs" / "convert_gguf.py"
TOKENIZER = REPOSITORY / "jobs" / "demo" / "model" / "tokenizer.json"

with contextlib.suppress(ImportError):
    import gguf
    import numpy
    import safetensors.torch
    import torch
    import transformers


class Case(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.scratch = Path(scratch.name)
        self.source, self.folder = self.scratch / "model.gguf", self.scratch / "model"

    def run_script(self, *arguments, **environment):
        return subprocess.run([sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, encoding="utf-8", check=False,
                              env={**os.environ, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1", **environment})

    def fault(self, **environment):
        done = self.run_script(self.source, self.folder, **environment)
        self.assertEqual(done.returncode, 1, done.stderr)
        lines = done.stderr.strip().splitlines()
        self.assertEqual(len(lines), 1, done.stderr)
        self.assertEqual([path.name for path in self.scratch.iterdir() if path.name.startswith("model.")], ["model.gguf"] * self.source.exists())
        return lines[0].replace(str(self.scratch) + "/", "")


class Files(Case):
    def setUp(self):
        super().setUp()
        self.libraries = self.scratch / "libraries"
        self.libraries.mkdir()
        for name in ("accelerate", "gguf", "torch"):
            (self.libraries / f"{name}.py").write_text("")
        mapping = self.libraries / "transformers" / "integrations" / "gguf"
        mapping.mkdir(parents=True)
        for package in (mapping, mapping.parent):
            (package / "__init__.py").write_text("")
        (mapping / "gguf_tokenizer_mapping.py").write_text("GGUF_PRE_TOKENIZER_SPLITS = {}\n")
        logging = "class logging:\n    set_verbosity_error = disable_progress_bar = staticmethod(lambda: None)\n"
        (mapping.parents[1] / "__init__.py").write_text(logging)

    def with_libraries(self):
        return self.fault(PYTHONPATH=str(self.libraries))

    def test_what_is_missing_is_named(self):
        (self.libraries / "gguf.py").write_text("raise ImportError('no gguf')")
        self.assertIn("convert_gguf: expected torch, transformers, accelerate and gguf, got no gguf; pip install", self.with_libraries())

    def test_the_file(self):
        self.assertEqual(self.with_libraries(), "convert_gguf: model.gguf: expected a GGUF file, got nothing of that name")
        self.source.write_bytes(b"PK")
        self.assertIn("got another; it begins with other bytes", self.with_libraries())
        self.source.unlink()
        self.source = self.scratch / "part-00001-of-00003.gguf"
        self.source.write_bytes(b"GGUF")
        done = self.run_script(self.source, self.folder, PYTHONPATH=str(self.libraries))
        self.assertIn("expected a whole file, got one of several; llama-gguf-split --merge joins them", done.stderr)

    def test_nothing_is_overwritten(self):
        self.source.write_bytes(b"GGUF")
        self.folder.mkdir()
        (self.folder / "mine").write_text("x")
        self.assertIn("expected the name of a new folder, got one that exists", self.with_libraries())
        self.assertEqual((self.folder / "mine").read_text(), "x")


class Conversion(Case):
    """A tiny Llama, as llama.cpp's converter writes it: rows of queries and keys by pairs of a rotation."""

    heads, kv_heads, size, inner, layers, theta = 4, 2, 64, 96, 2, 10000.0

    def write(self, factors=None, without=(), architecture="llama", pre="llama-bpe"):
        torch.manual_seed(1)
        tokens = json.loads(TOKENIZER.read_text())
        vocabulary = sorted(tokens["model"]["vocab"], key=tokens["model"]["vocab"].get)
        kinds = [gguf.TokenType.NORMAL] * len(vocabulary)
        for added in tokens["added_tokens"]:
            vocabulary[added["id"]:added["id"] + 1] = [added["content"]]
            kinds[added["id"]:added["id"] + 1] = [gguf.TokenType.CONTROL]
        config = transformers.LlamaConfig(
            vocab_size=len(vocabulary), hidden_size=self.size, intermediate_size=self.inner, num_hidden_layers=self.layers,
            num_attention_heads=self.heads, num_key_value_heads=self.kv_heads, max_position_embeddings=512, tie_word_embeddings=False,
            rope_parameters={"rope_type": "default", "rope_theta": self.theta})
        self.model = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
        writer = gguf.GGUFWriter(self.source, architecture)
        writer.add_context_length(512)
        writer.add_embedding_length(self.size)
        writer.add_block_count(self.layers)
        writer.add_feed_forward_length(self.inner)
        writer.add_head_count(self.heads)
        writer.add_head_count_kv(self.kv_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_freq_base(self.theta)
        writer.add_vocab_size(len(vocabulary))
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(vocabulary)
        writer.add_token_types(kinds)
        writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in tokens["model"]["merges"]])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)
        names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, self.layers)
        for name, weight in self.model.state_dict().items():
            if name in without:
                continue
            values = weight.float().numpy()
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                count = self.heads if "q_proj" in name else self.kv_heads
                values = values.reshape(count, 2, values.shape[0] // count // 2, -1).swapaxes(1, 2).reshape(values.shape)
            writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), numpy.ascontiguousarray(values))
        if factors is not None:
            writer.add_tensor("rope_freqs.weight", numpy.asarray(factors, dtype=numpy.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def scaling_of_llama3(self, factor):
        """Per pair of a head's elements what Llama 3.1's code divides its frequency by."""
        divisors = []
        for place in range(self.size // self.heads // 2):
            length = 2 * math.pi * self.theta ** (2 * place / (self.size // self.heads))
            if length < 8192 / 4:
                divisors.append(1.0)
            elif length > 8192:
                divisors.append(factor)
            else:
                smooth = (8192 / length - 1) / 3
                divisors.append(1 / ((1 - smooth) / factor + smooth))
        return divisors

    def test_weights_tokens_and_config_are_the_models(self):
        self.write()
        done = self.run_script(self.source, self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("LlamaForCausalLM", done.stdout)
        weights = safetensors.torch.load_file(self.folder / "model.safetensors")
        expected = self.model.state_dict()
        self.assertEqual(set(weights), set(expected))
        for name, weight in weights.items():
            self.assertTrue(torch.equal(weight, expected[name]), name)
        text = "It was a dark and stormy night in 1830; the rain\n\n  fell in torrents (it's said).<|end_of_text|>"
        ours = transformers.AutoTokenizer.from_pretrained(self.folder)
        theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER))
        self.assertEqual(ours.encode(text, add_special_tokens=False), theirs.encode(text, add_special_tokens=False))
        self.assertEqual(len(ours), len(theirs), "no token that the file has not")
        config = json.loads((self.folder / "config.json").read_text())
        self.assertEqual(config["rope_parameters"]["rope_theta"], self.theta)
        self.assertIn("expected the name of a new folder, got one that exists", self.fault())

    def test_positions_of_llama_3_1_are_scaled(self):
        self.write(self.scaling_of_llama3(8.0))
        done = self.run_script(self.source, self.folder)
        self.assertEqual(done.returncode, 0, done.stderr)
        rope = json.loads((self.folder / "config.json").read_text())["rope_parameters"]
        self.assertEqual({key: rope[key] for key in ("rope_type", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")},
                         {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192})

    def test_other_scalings_are_refused(self):
        factors = self.scaling_of_llama3(8.0)
        factors[3] *= 1.5
        self.write(factors)
        self.assertIn("rope_freqs.weight: expected the scaling of Llama 3.1 to 3.3, got another; fetch", self.fault())

    def test_a_weight_that_is_missing_is_no_random_one(self):
        self.write(without=("model.layers.1.mlp.up_proj.weight",))
        self.assertIn("missing weights: expected none, got 1, among them model.layers.1.mlp.up_proj.weight", self.fault())

    def test_a_tokenizer_that_transformers_does_not_know_is_refused(self):
        self.write(pre="of-our-own")
        self.assertIn("tokenizer.ggml.pre: expected a way to split texts that transformers knows, got of-our-own", self.fault())

    def test_damaged_and_unknown_files(self):
        self.write(architecture="nobody")
        self.assertIn("expected a model that transformers", self.fault())
        self.source.write_bytes(self.source.read_bytes()[:2000])
        self.assertIn("convert_gguf: model.gguf: expected", self.fault())


if __name__ == "__main__":
    unittest.main()
