"""jobs/rsd, jobs/tokenswift and jobs/lyanna with the real program, where the build says which it is: from data to the
papers' tables and figures.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

JOBS = Path(__file__).resolve().parents[2] / "jobs"
PROGRAM = os.environ.get("LONGHAUL_PROGRAM")


def script(*arguments, **environment):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = list(map(str, arguments))
    return subprocess.run(
        command, capture_output=True, encoding="utf-8", check=False, env={**os.environ, "PATH": path, **environment}
    )


@pytest.fixture
def rsd(tmp_path):
    """jobs/rsd as it is, but for most trees and seeds."""
    shutil.copytree(JOBS / "rsd", tmp_path / "jobs" / "rsd")
    for shared in ("experiment.sh", "prompts.py"):
        shutil.copy(JOBS / shared, tmp_path / "jobs")
    (tmp_path / "jobs" / "demo").symlink_to(JOBS / "demo")
    for file in (tmp_path / "jobs" / "rsd").glob("*.cfg"):
        kept = ("variant sd-3 ", "variant sd-6 ", "variant rsd-s-3x3 ", "variant rsd-s-4x3 ", "variant rsd-c-3-1 ",
                "variant rsd-s-2x3 ")  # fmt: skip
        lines = [
            line for line in file.read_text().splitlines() if not line.startswith("variant") or line.startswith(kept)
        ]
        file.write_text("\n".join(lines).replace("1 | 2 | 3", "1") + "\n")
    return tmp_path / "jobs" / "rsd"


@pytest.mark.skipif(PROGRAM is None, reason="LONGHAUL_PROGRAM names no program")
def test_an_experiment_ends_in_the_papers_table_and_figure(rsd):
    runs = rsd.parents[1] / "runs" / "rsd"
    few = ["--limit=2", "--max-tokens=6", "--threads=1"]
    for number, task, quality in (("1", "xsum", "accuracy"), ("2", "wmt", "accuracy"), ("1", "dolly", None)):
        done = script(rsd / "run.sh", number, task, *few, SEEDS="1 2")
        assert done.returncode == 0, done.stderr
        output = runs / f"experiment-{number}-{task}"
        size = "draft-depth" if number == "1" else "draft-nodes"
        head, *rows = (output / "paper.csv").read_text().splitlines()
        assert head.startswith(f"{size},draft,draft-tree,block_efficiency,block_efficiency_se,")
        assert quality is None or f",{quality}," in head
        decoders = {"1": ["ar", "rsd-c", "rsd-s", "rsd-s", "sd"], "2": ["ar", "rsd-c", "rsd-s", "sd"]}[number]
        assert sorted(row.split(",")[1] for row in rows) == decoders
        relative = (output / "relative.md").read_text()
        assert "MBSU / ar" in relative
        assert "1.000 ± 0.000" in relative
        assert (output / f"figure-{int(number) + 3}.svg").read_text().count("rsd-") > 0
        tested = quality and (output / "accuracy.txt").read_text()
        assert tested is None or "difference" in tested
        job = (output / "draft=ar,seed=1" / "job.cfg").read_text()
        assert ("temperature = 0.3" in job) == (task != "dolly")
        assert ("top-p = 0.95" in job) == (task == "dolly")


@pytest.mark.skipif(PROGRAM is None, reason="LONGHAUL_PROGRAM names no program")
def test_failed_items_do_not_keep_the_tables_away(rsd, tmp_path):
    lines = (rsd / "sample" / "xsum.jsonl").read_text().splitlines()
    (tmp_path / "mine.jsonl").write_text("\n".join([lines[0], "no JSON", lines[1]]) + "\n")
    few = ["--max-tokens=6", "--threads=1"]
    done = script(rsd / "run.sh", "1", "xsum", f"--data={tmp_path}/mine.jsonl", *few, SEEDS="1 2")
    assert done.returncode == 3, done.stderr
    assert "warning: some items failed, " in done.stderr
    output = tmp_path / "runs" / "rsd" / "experiment-1-xsum"
    assert len((output / "paper.csv").read_text().splitlines()) == 6
    assert (output / "relative.md").exists()
    assert (output / "figure-4.svg").exists()


@pytest.mark.skipif(PROGRAM is None, reason="LONGHAUL_PROGRAM names no program")
def test_sentences_without_references_end_in_tables_too(rsd, tmp_path):
    shutil.copy(rsd / "sample" / "wmt.de", tmp_path / "mine.txt")
    few = ["--limit=2", "--max-tokens=6", "--threads=1"]
    done = script(rsd / "run.sh", "2", "wmt", f"--data={tmp_path}/mine.txt", *few)
    assert done.returncode == 0, done.stderr
    assert "warning: the data has no references, so the tables are without accuracy; " in done.stderr
    assert "accuracy" not in (tmp_path / "runs" / "rsd" / "experiment-2-wmt" / "paper.csv").read_text()


@pytest.fixture
def asked(tmp_path):
    """asked(code, *words) -> what run.sh asks of a sweep that then ends with this code, and what became of it."""
    program = tmp_path / "program"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" >"{tmp_path}/asked"\nexit "$CODE"\n')
    program.chmod(0o755)

    def ask(code, *words):
        done = script(JOBS / "rsd" / "run.sh", *words, f"--output={tmp_path}", LONGHAUL_PROGRAM=program, CODE=str(code))
        return (tmp_path / "asked").read_text().splitlines(), done

    return ask


@pytest.mark.parametrize("code", [1, 2, 74, 75, 137])
def test_a_sweep_that_ends_early_says_how_to_go_on(asked, code):
    _, done = asked(code, "1", "xsum")
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"error: the sweep ended with exit code {code}, and no tables were made; ")
    assert done.stderr.endswith("run this again: it resumes where it was\n")


def test_our_references_are_those_of_our_sentences(asked):
    ours, _ = asked(75, "2", "wmt")
    assert f"--data={JOBS}/rsd/sample/wmt.de" in ours
    assert f"--reference={JOBS}/rsd/sample/wmt.en" in ours
    for words in (["--data=my.de"], ["--data", "my.de"]):
        yours, _ = asked(75, "2", "wmt", *words)
        assert not any(word.startswith(("--reference", f"--data={JOBS}")) for word in yours)
    both, _ = asked(75, "2", "wmt", "--data=my.de", "--reference=my.en")
    assert [word for word in both if word.startswith("--reference")] == ["--reference=my.en"]


def test_each_experiment_names_a_folder_of_its_own():
    for number in ("1", "2"):
        text = (JOBS / "rsd" / f"experiment-{number}.cfg").read_text()
        assert re.findall(r"run\.sh (\d) wmt --data.*\n.*--output=runs/rsd-(\d)-wmt", text) == [(number, number)]


@pytest.mark.skipif(PROGRAM is None, reason="LONGHAUL_PROGRAM names no program")
def test_the_ordering_has_a_row_per_decoder_and_columns_per_temperature(rsd):
    done = script(rsd / "run.sh", "ordering", "--limit=2", "--max-tokens=6", "--threads=1")
    assert done.returncode == 0, done.stderr
    head, *rows = (rsd.parents[1] / "runs" / "rsd" / "ordering" / "paper.csv").read_text().splitlines()
    assert all(f",temperature={value} block_efficiency," in head for value in ("0.3", "1"))
    assert [row.split(",")[:3] for row in rows] == [["", "ar", ""], ["6", "rsd-s", "2x3"], ["6", "sd", "6"]]
    done = script(rsd / "run.sh", "ordering", "--limit=2", "--max-tokens=6", "--threads=1", "--token-rates=false")
    assert done.returncode == 0, done.stderr
    head = (rsd.parents[1] / "runs" / "rsd" / "ordering" / "paper.md").read_text().splitlines()[0]
    assert "tokens/s" not in head
    assert "MBSU" in head
    assert "temperature 0.3" in (rsd.parents[1] / "runs" / "rsd" / "ordering" / "ordering.svg").read_text()


@pytest.mark.skipif(PROGRAM is None, reason="LONGHAUL_PROGRAM names no program")
def test_the_matrix_ends_in_one_table_and_one_figure(rsd, tmp_path):
    few = ["--limit=2", "--max-tokens=6", "--threads=1", "--draft-ratio=0.017"]
    names = ["--tasks=xsum,dolly", f"--xsum-data={rsd}/sample/xsum.jsonl", "--experiments=2"]
    done = script(rsd / "run.sh", "all", *names, *few, SEEDS="7")
    assert done.returncode == 0, done.stderr
    output = tmp_path / "runs" / "rsd" / "all"
    table = (output / "paper.md").read_text()
    assert table in done.stdout
    head, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines() if "|" in line]
    assert head == ["Model", "Task", "Comp.", "Dec.", "Spec.", "Eff.", "MBSU", "TR", "Acc."]
    drafts = [["", "ar", ""], ["6", "rsd-c", "3,1"], ["6", "rsd-s", "2x3"], ["6", "sd", "6"]]
    assert [row[:5] for row in rows[:8]] == [["model", task, *of] for task in ("dolly", "xsum") for of in drafts]
    (chain,) = (row for row in rows if row[1:4] == ["xsum", "6", "sd"])
    assert float(chain[6].split()[0]) == pytest.approx(float(chain[5].split()[0]) / (6 * 0.017 + 1), abs=2e-3)
    figure = (output / "figure-5.svg").read_text()
    assert "dolly" in figure
    assert "xsum" in figure
    assert figure.count("MBSU / ar") == 2
    assert "model/experiment-2-dolly: rsd-s against sd: " in (output / "paired-2.txt").read_text()
    assert (output / "model" / "experiment-2-xsum" / "accuracy.txt").exists()
    assert not (output / "model" / "experiment-2-dolly" / "accuracy.txt").exists()
    assert (output / "model" / "experiment-2-xsum" / "sd-6,seed=7").is_dir()


@pytest.mark.skipif(PROGRAM is None, reason="LONGHAUL_PROGRAM names no program")
def test_a_decoder_that_loses_accuracy_is_an_error(rsd, tmp_path):
    reference = "the old bridge over the river was closed on Monday"
    lines = [json.dumps({"id": f"a{n}", "document": f"Number {n}.", "summary": f"{reference} {n}"}) for n in range(12)]
    (tmp_path / "mine.jsonl").write_text("\n".join(lines) + "\n")
    words = ["all", "--tasks=xsum", "--experiments=1", f"--xsum-data={tmp_path}/mine.jsonl"]
    few = ["--max-tokens=4", "--threads=1"]
    assert script(rsd / "run.sh", *words, *few).returncode == 0
    output = tmp_path / "runs" / "rsd" / "all" / "model" / "experiment-1-xsum"
    results = output / "draft=ar,seed=1" / "results.jsonl"
    items = [json.loads(line) | {"text": reference} for line in results.read_text().splitlines()]
    results.write_text("".join(json.dumps(item) + "\n" for item in items))  # as if plain decoding had been perfect
    done = script(rsd / "run.sh", *words, *few)
    assert done.returncode == 1
    assert "sd: ROUGE-2: expected no loss against ar, got -" in done.stderr
    assert (tmp_path / "runs" / "rsd" / "all" / "paper.md").exists(), "the tables are there all the same"


def test_chat_models_end_their_answers_themselves(asked):
    def options(*words):
        return [word for word in asked(75, *words)[0] if word.startswith(("--stop", "--chat=", "--max-tokens"))]

    assert options("1", "xsum") == ["--stop=\\n"]
    assert options("1", "wmt", "--model=/models/Llama-2-7b-hf") == ["--stop=\\n"]
    assert options("1", "wmt", "--stop=") == ["--stop="]
    for model in ("Llama-2-7b-chat-hf", "Llama-3.1-8B-Instruct", "gemma-2-2b-it"):
        assert options("1", "xsum", f"--model=/models/{model}") == ["--chat=true"]
        assert options("1", "xsum", f"--model=/models/{model}", "--chat=false") == ["--stop=\\n", "--chat=false"]
    assert options("1", "wmt", "--chat=true") == ["--chat=true"]
    assert options("2", "wmt", "--template=my-chat.txt") == []
    assert options("2", "wmt", "--chat-template=llama2") == ["--chat=true"]
    assert options("1", "dolly") == ["--max-tokens=256"]
    assert options("1", "dolly", "--max-tokens=64", "--model=/models/a-chat") == ["--chat=true", "--max-tokens=64"]


def test_rates_are_block_efficiencies_over_measured_times(tmp_path):
    line = {"draft": "rsd-s", "tree": "6x5", "accept": 0.7, "ratio": 0.02, "block_efficiency": 2.9,
            "draft_seconds": 0.1, "target_seconds": 0.9, "tokens_per_second": 2.9, "ar_tokens_per_second": 1.25,
            "speedup": 2.32}  # fmt: skip
    lines = [line, line | {"draft": "sd", "tree": "7"}]
    bench = {"shape": "7b", "precision": "bf16", "kernels": "avx2", "threads": 2, "lines": lines}
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\necho \"$@\" >{tmp_path}/asked\ncat <<'END'\n{json.dumps(bench)}\nEND\n")
    program.chmod(0o755)
    words = ["rates", f"--output={tmp_path}/rates", "--rounds=1"]
    done = script(JOBS / "rsd" / "run.sh", *words, LONGHAUL_PROGRAM=program)
    assert done.returncode == 0, done.stderr
    wanted = "bench speculation --shape=7b --draft-shape=115m --acceptance=0.7 --rounds=1 --json"
    assert (tmp_path / "asked").read_text().strip() == wanted
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in done.stdout.splitlines() if "|" in row]
    assert rows[2][:8] == ["RSD-S", "6x5", "100.0", "900.0", "0.70", "2.90", "2.90", "2.32"], "measured"
    assert rows[2][8:] == ["3.221", "2.928", "3.22", "2.58"], "with the paper's block efficiency"
    assert rows[3][8:] == [""] * 4, "a tree that the paper does not have"


def test_bad_words_end_in_the_usage(rsd):
    for words in ([], ["3", "xsum"], ["1"], ["1", "pg19"]):
        done = script(rsd / "run.sh", *words)
        assert (done.returncode, done.stderr[:31]) == (2, "error: usage: jobs/rsd/run.sh 1")
    assert "--output=FOLDER" in script(rsd / "run.sh", "1", "xsum", "--output", "x").stderr


def test_prompts_are_cut_at_words():
    done = script(sys.executable, JOBS / "prompts.py", JOBS / "demo" / "books", "--count", 10, "--characters", 80)
    prompts = [json.loads(line) for line in done.stdout.splitlines()]
    assert len({prompt["id"] for prompt in prompts}) == 10
    books = " ".join(book.read_text() for book in sorted((JOBS / "demo" / "books").glob("*.txt")))
    for prompt in prompts:
        text = prompt["prompt"]
        assert 40 < len(text) <= 80
        assert text in books
        assert books[books.index(text) + len(text)].isspace()
    assert script(sys.executable, JOBS / "prompts.py", JOBS / "demo" / "books", "--count", 7).returncode == 1


def test_figure_1_is_drawn(tmp_path):
    done = script(sys.executable, JOBS / "rsd" / "figure_1.py", tmp_path / "figure-1.svg")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "figure-1.svg").read_text()
    assert all(name in text for name in ("multi-round", "K-SEQ", "optimal transport", "recursive"))


@pytest.fixture
def tokenswift(tmp_path):
    """jobs/tokenswift as it is, but for one seed and one value of n-grams."""
    shutil.copytree(JOBS / "tokenswift", tmp_path / "jobs" / "tokenswift")
    shutil.copy(JOBS / "experiment.sh", tmp_path / "jobs")
    (tmp_path / "jobs" / "demo").symlink_to(JOBS / "demo")
    for file in (tmp_path / "jobs" / "tokenswift").glob("*-*.cfg"):
        text = file.read_text().replace("grid seed = 1 | 2 | 3", "grid seed = 1")
        file.write_text(re.sub(r"grid ngram-top = .*", "grid ngram-top = 0 | 5", text))
    return tmp_path / "jobs" / "tokenswift"


@pytest.mark.skipif(PROGRAM is None, reason="LONGHAUL_PROGRAM names no program")
def test_tokenswifts_experiments_end_in_table_and_figure(tokenswift, tmp_path):
    done = script(tokenswift / "run.sh", "figure-4", "--max-tokens=5120", "--prompt-tokens=64", "--draft-tree=1,1")
    assert done.returncode == 0, done.stderr
    output = tmp_path / "runs" / "tokenswift" / "figure-4"
    head, *rows = (output / "paper.csv").read_text().splitlines()
    assert head.startswith("draft,ngram-top,tokens,alpha,alpha_se,alpha_runs,beta")
    labels = [tuple(row.split(",")[:3]) for row in rows]
    lengths = [str(1024 * part) for part in range(1, 6)]
    assert labels == [("ar", "", n) for n in lengths] + [("tokenswift", top, n) for top in ("0", "5") for n in lengths]
    assert "token distinct-4" in (output / "distinct.md").read_text()
    assert "ngram-top" in (output / "figure-4.svg").read_text()


def test_tokenswifts_experiments_say_what_they_know():
    done = script(JOBS / "tokenswift" / "run.sh", "table-2")
    assert done.returncode == 2
    assert "WHAT one of table-12 table-13" in done.stderr


@pytest.mark.skipif(PROGRAM is None, reason="LONGHAUL_PROGRAM names no program")
def test_lyannas_experiments_end_in_table_and_figure(tmp_path):
    shutil.copytree(JOBS / "lyanna", tmp_path / "jobs" / "lyanna")
    for shared in ("experiment.sh", "prompts.py"):
        shutil.copy(JOBS / shared, tmp_path / "jobs")
    for folder in ("demo", "tokenswift"):
        (tmp_path / "jobs" / folder).symlink_to(JOBS / folder)
    for name in ("figure-8", "figure-12"):
        file = tmp_path / "jobs" / "lyanna" / f"{name}.cfg"
        file.write_text(file.read_text().replace("batch = 2 | 4 | 8 | 16", "batch = 2 | 4"))
        done = script(file.parent / "run.sh", name, "--limit=4", "--max-tokens=12", "--threads=1")
        assert done.returncode == 0, done.stderr
    runs = tmp_path / "runs" / "lyanna"
    assert len((runs / "prompts.jsonl").read_text().splitlines()) == 200
    _, *rows = (runs / "figure-8" / "paper.csv").read_text().splitlines()
    assert [row.split(",")[0] for row in rows] == ["ar", "eagle", "lyanna", "ngram", "specinfer"]
    assert "lyanna" in (runs / "figure-8" / "figure-8.svg").read_text()
    head, *rows = (runs / "figure-12" / "paper.csv").read_text().splitlines()
    assert head.startswith("temperature,resample,draft-tree,block_efficiency,")
    assert len(rows) == 8
    assert "WHAT one of figure-12 figure-8" in script(JOBS / "lyanna" / "run.sh", "table-1").stderr


def test_longwriter_prompts_are_those_that_its_script_writes():
    done = script(sys.executable, JOBS / "longwriter.py")
    assert done.stdout == (JOBS / "longwriter.jsonl").read_text()
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len({line["id"] for line in lines}) == len(lines) == 48
    assert all(f"a {line['length']}-word" in line["prompt"] for line in lines)


def test_the_judges_prompts_are_those_of_the_texts_that_were_written(tmp_path):
    """The command of jobs/README.md; the first job may have taken a part of the prompts, in any order."""
    page = (JOBS / "README.md").read_text()
    code = page.split("> judge.jsonl <<'END'\n")[1].split("END\n")[0]
    asked = [{"id": "a", "prompt": "Write A."}, {"prompt": "Write B."}, {"id": "c", "prompt": "Write C."}]
    written = [{"id": "2", "text": "Text B."}, {"id": "a", "text": "Text A."}]
    for name, lines in (("asked", asked), ("written", written)):
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = script(sys.executable, "-c", code, tmp_path / "asked", tmp_path / "written")
    assert done.stderr == ""
    prompts = {line["id"]: line["messages"][0]["content"] for line in map(json.loads, done.stdout.splitlines())}
    assert list(prompts) == ["2", "a"]
    assert "The task:\nWrite B.\n\nThe text:\nText B." in prompts["2"]
