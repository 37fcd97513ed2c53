"""jobs/convert_checkpoint.py: its output, and the one-line errors.

    convert_checkpoint_test.py WithoutTorch     the folder and its files, with fake modules in place of torch's
    convert_checkpoint_test.py Conversion       tensors; needs torch 2.6 or newer, safetensors and numpy in this Python
"""

import contextlib
import importlib.util
import io
import json
import os
import pickle
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import warnings
from pathlib import Path
from unittest import mock

SCRIPT = Path(__file__).resolve().parents[2] / "jobs" / "convert_checkpoint.py"

with contextlib.suppress(ImportError):
    import safetensors.torch
    import torch

# Fakes of the parts of torch and safetensors that the script uses. A file holds {"name": [numbers]} in either format.
FAKES = {
    "numpy.py": "",
    "torch.py": """
import json, types
__version__ = "2.6.0"
bfloat16, float16, float32, strided = "bfloat16", "float16", "torch.float32", "strided"
int64, int32, uint8, bool = "int64", "int32", "uint8", "bool"

class Tensor:
    dtype, layout, device = float32, strided, types.SimpleNamespace(type="cpu")

    def __init__(self, values):
        self.values, self.shape, self.nbytes = values, (len(values),), 4 * len(values)

    def element_size(self):
        return 4

    def untyped_storage(self):
        return types.SimpleNamespace(data_ptr=lambda: id(self))

    def contiguous(self):
        return self

def load(path, map_location, weights_only, mmap):
    assert weights_only
    with open(path) as file:
        return {name: Tensor(values) for name, values in json.load(file).items()}
""",
    "safetensors/__init__.py": "class SafetensorError(Exception): pass\n",
    "safetensors/torch.py": """
import json, safetensors

def save_file(tensors, path, metadata):
    path.write_text(json.dumps({name: tensor.values for name, tensor in tensors.items()}))
    if "disk_is_full" in tensors:
        raise safetensors.SafetensorError("No space left on device")
""",
}


class Case(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)


class WithoutTorch(Case):
    def run_script(self, modules):
        """Runs the script with these modules. Returns standard output and error, and the exit code."""
        self.model = self.folder / "model"
        self.model.mkdir(exist_ok=True)
        for name, text in modules.items():
            (self.folder / name).parent.mkdir(exist_ok=True)
            (self.folder / name).write_text(text)
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run([sys.executable, SCRIPT, self.model], env=environment, capture_output=True, text=True, check=False)

    def refusal(self, modules, advice="pip install 'torch>=2.6' safetensors numpy"):
        """The one-line error; the model folder must be unchanged."""
        before = self.contents()
        done = self.run_script(modules)
        self.assertEqual((done.returncode, done.stderr.count("\n")), (1, 1), done.stderr)
        self.assertIn(advice, done.stderr)
        self.assertEqual(self.contents(), before)
        return done.stderr

    def contents(self):
        return {path.name: path.read_bytes() for path in (self.folder / "model").glob("*")}

    def give(self, **files):
        """Makes a model folder of exactly these files, each a text or data to be written as JSON."""
        folder = self.folder / "model"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        for name, content in {"config": {"model_type": "llama"}, **files}.items():
            name += ".json" if name in ("config", "pytorch_model.bin.index") else ""
            (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))

    def written(self):
        """The tensors that the script writes, by name."""
        before = self.contents().keys()
        done = self.run_script(FAKES)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return {name: json.loads(content) for name, content in self.contents().items() if name not in before}

    def test_torch_that_runs_code_is_refused(self):
        for version in ("1.13.1", "2.5.1+cu121"):
            self.assertIn(f"expected torch>=2.6, older ones may run code of a file; got {version}",
                          self.refusal({"numpy.py": "", "torch.py": f"__version__ = {version!r}\n"}))

    def test_what_is_not_installed_is_named(self):
        self.assertIn("got No module named 'some_part'", self.refusal({"numpy.py": "", "torch.py": "import some_part\n"}))

    def test_one_file(self):
        self.give(**{"pytorch_model.bin": {"a": [1, 2], "lm_head.weight": [3]}})
        self.assertEqual(self.written(), {"model.safetensors": {"a": [1, 2], "lm_head.weight": [3]}})
        self.assertIn("expected no safetensors yet, got model.safetensors", self.refusal(FAKES, "nothing is left to do"))
        self.give(config={"tie_word_embeddings": True}, **{"pytorch_model.bin": {"a": [1, 2], "lm_head.weight": [3]}})
        self.assertEqual(self.written(), {"model.safetensors": {"a": [1, 2]}})

    def test_parts(self):
        index = {"weight_map": {"a": "first.bin", "b": "second.bin"}}
        self.give(**{"first.bin": {"a": [1, 2]}, "second.bin": {"b": [3]}, "pytorch_model.bin.index": index})
        first, second = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
        self.assertEqual(self.written(), {first: {"a": [1, 2]}, second: {"b": [3]}, "model.safetensors.index.json":
                                          {"metadata": {"total_size": 12}, "weight_map": {"a": first, "b": second}}})
        for second_file, line in (({"a": [3]}, "second.bin: a: expected in one file, got it also in first.bin; fetch"),
                                  ("hello", "second.bin: expected tensors as torch.save writes them, got Expecting value"),
                                  ({"disk_is_full": [1]}, "expected to write it, got No space left on device; make space")):
            self.give(**{"first.bin": {"a": [1, 2]}, "second.bin": second_file, "pytorch_model.bin.index": index})
            self.assertIn(line, self.refusal(FAKES, "; "))

    def test_files_that_do_not_fit_together(self):
        weights = {"a": [1]}
        for files, line in (({}, "expected pytorch_model.bin or pytorch_model.bin.index.json, got neither; fetch"),
                            ({"pytorch_model.bin.index": []}, "expected an object, got list; fetch"),
                            ({"pytorch_model.bin.index": {"weight_map": {}}}, "weight_map: expected tensors and their files, got none"),
                            ({"pytorch_model.bin.index": {"weight_map": {"a": "../a.bin"}}}, "expected names of files beside it, got '../a.bin'"),
                            ({"pytorch_model.bin.index": {"weight_map": {"a": "a.bin"}}}, "expected a.bin beside it, got none; fetch"),
                            ({"pytorch_model.bin": weights, "config": "{"}, "config.json: expected JSON, got Expecting"),
                            ({"pytorch_model.bin": {}}, "expected tensors by name, got none; fetch"),
                            ({"pytorch_model.bin": "version https://git-lfs.github.com/spec/v1\n"}, "got a Git-LFS pointer; fetch")):
            with self.subTest(line):
                self.give(**files)
                self.assertIn(line, self.refusal(FAKES, "; "))


class Conversion(Case):
    @classmethod
    def setUpClass(cls):
        specification = importlib.util.spec_from_file_location("convert_checkpoint", SCRIPT)
        cls.script = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(cls.script)

    def setUp(self):
        super().setUp()
        self.file = self.folder / "pytorch_model.bin"
        self.config()

    def config(self, **keys):
        (self.folder / "config.json").write_text(json.dumps({"model_type": "llama", **keys}))

    def run_script(self):
        """The output of the script; raises only SystemExit, as the program would end."""
        out = io.StringIO()
        with mock.patch.object(sys, "argv", [str(SCRIPT), str(self.folder)]), contextlib.redirect_stdout(out):
            self.script.main()
        return out.getvalue()

    def converted(self, state, **options):
        torch.save(state, self.file, **options)
        self.run_script()
        return safetensors.torch.load_file(self.folder / "model.safetensors")

    def refused(self, *words, file="pytorch_model.bin"):
        """Expects one line that names the file and contains `words` and a hint; the folder must be unchanged."""
        before = sorted(self.folder.iterdir())
        with self.assertRaises(SystemExit) as ended:
            self.run_script()
        line = ended.exception.code
        self.assertTrue(line.isprintable(), line)
        for word in (f"convert_checkpoint: {self.folder / file}: ", *words, "; "):
            self.assertIn(word, line)
        for advice in ("weights_only", "safe_globals"):
            self.assertNotIn(advice, line)
        self.assertEqual(sorted(self.folder.iterdir()), before)

    def refused_state(self, state, *words):
        torch.save(state, self.file)
        self.refused(*words)

    def test_values_and_types_stay(self):
        state = {"a": torch.arange(6, dtype=torch.float32).reshape(2, 3), "b": torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16)),
                 "c": torch.tensor(1.5, dtype=torch.float16), "none": torch.empty(0, 4),
                 "d2t": torch.tensor([3, 2**40]), "t2d": torch.tensor([True, False])}
        for options in ({}, {"_use_new_zipfile_serialization": False}):
            got = self.converted(state, **options)
            self.assertEqual(sorted(got), sorted(state))
            for name, tensor in state.items():
                self.assertEqual(got[name].dtype, tensor.dtype)
                self.assertTrue(torch.equal(got[name], tensor), name)
            (self.folder / "model.safetensors").unlink()

    def test_tensors_that_share_memory(self):
        a = torch.arange(6.0).reshape(2, 3)
        got = self.converted({"a": a, "transposed": a.t(), "same": a, "part": a[1, 1:], "expanded": torch.ones(1).expand(4)})
        self.assertTrue(torch.equal(got["a"], a) and torch.equal(got["same"], a) and torch.equal(got["part"], a[1, 1:]))
        self.assertTrue(torch.equal(got["transposed"], a.t()))
        self.assertTrue(torch.equal(got["expanded"], torch.ones(4)))

    def test_tied_head_is_left_out(self):
        weight = torch.ones(2, 2)
        self.config(tie_word_embeddings=True)
        self.assertEqual(list(self.converted({"lm_head.weight": weight, "embedding": weight})), ["embedding"])

    def test_parts_become_as_many(self):
        torch.save({"a": torch.ones(2)}, self.folder / "first.bin")
        torch.save({"b": torch.zeros(3)}, self.folder / "second.bin")
        (self.folder / "pytorch_model.bin.index.json").write_text(
            json.dumps({"weight_map": {"a": "first.bin", "b": "second.bin"}}))
        self.run_script()
        index = json.loads((self.folder / "model.safetensors.index.json").read_text())
        self.assertEqual(index["metadata"], {"total_size": 20})
        self.assertEqual(index["weight_map"], {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"})
        for name, part in index["weight_map"].items():
            self.assertEqual(list(safetensors.torch.load_file(self.folder / part)), [name])

    def test_a_bad_part_leaves_no_other(self):
        torch.save({"a": torch.ones(2)}, self.folder / "first.bin")
        torch.save({"a": torch.ones(2)}, self.folder / "second.bin")
        (self.folder / "pytorch_model.bin.index.json").write_text(
            json.dumps({"weight_map": {"a": "first.bin", "b": "second.bin"}}))
        self.refused("a: expected in one file, got it also in first.bin", file="second.bin")
        (self.folder / "second.bin").write_bytes(b"hello")
        self.refused("expected tensors as torch.save writes them", file="second.bin")

    def test_files_that_are_something_else(self):
        class Foreign:
            def __reduce__(self):
                return os.system, ("echo this must not run",)

        torch.save({"a": torch.ones(2)}, self.file)
        whole = self.file.read_bytes()
        for content in (b"", b"hello", b"\x80\x02h\x05.", whole[:-30], pickle.dumps(Foreign()), pickle.dumps([1]),
                        b"\x80\x02" + b"(" * 100, b"\x80\x02]" + b"]" * 5 + b"a" * 9 + b"."):
            with self.subTest(content=content[:20]):
                self.file.write_bytes(content)
                self.refused("expected tensors ", "fetch the whole folder again")
        self.file.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
        self.refused("got a Git-LFS pointer; fetch the file itself: git lfs pull")

    def test_advice_to_run_what_a_file_holds_is_not_passed_on(self):
        torch.save({"a": Path("a class of its own")}, self.file)
        self.refused("got something else; fetch the whole folder again")
        with tarfile.open(self.file, "w") as tar:  # the format of torch before 0.1.10
            for name in ("storages", "tensors", "pickle"):
                tar.addfile(tarfile.TarInfo(name))
        self.refused("got something else; fetch the whole folder again")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # writing such files is deprecated
            torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), self.file)
        self.refused("got something else; fetch the whole folder again")

    def test_tensors_that_do_not_fit(self):
        fix = "; fix the state_dict in Python and torch.save it again"
        self.refused_state({}, "expected tensors by name, got none")
        self.refused_state([torch.ones(1)], "expected tensors by name, got list")
        self.refused_state({"w": 3}, "w: expected a tensor, got int" + fix)
        self.refused_state({3: torch.ones(1)}, "3: expected a tensor")
        self.refused_state(
            {"w": torch.ones(1, dtype=torch.float64)}, "w: expected bf16, fp16, fp32, int64, int32, uint8 or bool, got float64" + fix
        )
        self.refused_state({"w": torch.ones(1).to_sparse()}, "w: expected a dense tensor, got torch.sparse_coo" + fix)
        self.refused_state({"w": torch.empty(4, device="meta")}, "w: expected a tensor with values, got one on the device meta" + fix)
        self.refused_state({"w\n\x1b[1m": 3}, r"w\n\x1b[1m: expected a tensor")

    def test_tensors_that_would_fill_the_memory(self):
        wide = torch.ones(1).expand(2**19, 2**19)
        self.refused_state({"a": torch.ones(1), "w": wide}, "w: expected tensors of 1048576 bytes at most", "got 1099511627780 with this one")
        self.refused_state({f"w{n}": torch.ones(1).expand(2**16) for n in range(5)}, "w4: expected tensors of 1048576 bytes at most")

    def test_what_cannot_be_copied_or_written(self):
        torch.save({"w": torch.ones(2)}, self.file)
        with mock.patch.object(torch.Tensor, "contiguous", side_effect=RuntimeError("not\nhere")):
            self.refused("w: expected to copy it, got not; fix")

        def full(tensors, path, metadata):
            path.write_bytes(b"half")
            raise safetensors.SafetensorError("No space left on device")

        with mock.patch.object(safetensors.torch, "save_file", full):
            self.refused("expected to write it, got No space left on device; make space and convert again", file="model.safetensors")

    def test_other_files_of_the_folder(self):
        torch.save({"w": torch.ones(2)}, self.file)
        for config in ("[" * 100_000, "[1]", "\xff"):
            (self.folder / "config.json").write_text(config, encoding="latin-1")
            self.refused("fetch the whole folder again", file="config.json")
        (self.folder / "config.json").unlink()
        self.refused("expected JSON, got No such file or directory", file="config.json")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
