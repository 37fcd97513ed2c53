#!/usr/bin/env python3
"""rule-table as a user runs it: texts of every rule against the target's exact distribution, and refused input.

rule_table_test.py PROGRAM
"""

import itertools
import json
import subprocess
import sys
import unittest

PROGRAM = ""

Q = {"": [0.1, 0.25, 0.4, 0.25], "0": [0.7, 0.1, 0.1, 0.1], "2": [0, 0.5, 0, 0.5]}
P = {"": [0.4, 0.3, 0.2, 0.1], "1": [0.05, 0.05, 0.45, 0.45], "2": [1, 0, 0, 0]}
OTHER_P = {"": [0.25, 0.25, 0.25, 0.25]}
DRAWS = 20000


def run(job):
    """Exit code, answer (None if there is none), error lines."""
    text = job if isinstance(job, str) else json.dumps(job)
    done = subprocess.run([PROGRAM], input=text, capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr.splitlines()


def job_of(**changes):
    job = {"draft": "rsd-s", "draft-tree": "3x2", "verify": "recursive", "p": P, "q": Q, "emit": 2, "draws": DRAWS}
    job.update({key.replace("_", "-"): value for key, value in changes.items()})
    return {key: value for key, value in job.items() if value is not None}


def chance(text):
    chance_so_far = 1.0
    for place, token in enumerate(text):
        row = Q.get(",".join(map(str, text[:place])), Q[""])
        chance_so_far *= row[token]
    return chance_so_far


class RuleTable(unittest.TestCase):
    def assert_target(self, job):
        code, answer, complaint = run(job)
        self.assertEqual((code, complaint), (0, []), job)
        counts, emit, draws = answer["counts"], job["emit"], job["draws"]
        self.assertEqual(sum(counts.values()), draws)
        seen = 0
        for text in itertools.product(range(4), repeat=emit):
            count = counts.get(",".join(map(str, text)), 0)
            seen += count
            mean = draws * chance(text)
            # five standard deviations of a binomial count
            self.assertLessEqual(abs(count - mean), 5 * mean**0.5 + 1e-9, (text, job["draft"], job.get("verify")))
        self.assertEqual(seen, draws)
        self.assertGreaterEqual(draws * emit, answer["target_calls"])
        return answer

    def test_every_rule_emits_the_target(self):
        cases = [
            ("sd", "2", "rejection", P),
            ("sd", "2", "k-seq", P),
            ("spectr", "3x2", "multi-round", P),
            ("spectr", "3x2", "k-seq", P),
            ("specinfer", "2x2", "multi-round", [P, OTHER_P]),
            ("rsd-c", "2,2", "recursive", P),
            ("rsd-s", "3x2", "recursive", P),
            ("rsd-s", None, None, P),
            ("ngram", None, "recursive", None),
            ("ngram", "2x2", "coupled", P),
            ("ar", None, None, None),
        ]
        for draft, tree, verify, p in cases:
            answer = self.assert_target(job_of(draft=draft, draft_tree=tree, verify=verify, p=p))
            if draft != "ngram":  # which has seen too little in a text of two tokens
                self.assertEqual(answer["accepted"] > 0, draft != "ar", draft)

    def test_fewer_and_more_tokens_than_the_tree_has(self):
        self.assert_target(job_of(emit=1))
        self.assert_target(job_of(emit=3))

    def test_a_seed_is_one_answer(self):
        first, again, other = (run(job_of(draws=500, seed=seed)) for seed in (7, 7, 8))
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)

    def test_a_number_is_a_number(self):
        chain = {"draft": "sd", "verify": "rejection", "draws": 500}
        self.assertEqual(run(job_of(**chain, draft_tree=3, seed=1.0)), run(job_of(**chain, draft_tree="3")))
        self.assertEqual(run(job_of(**chain, draft_tree="3", emit=2.0)), run(job_of(**chain, draft_tree=3.0)))

    def test_an_answer_that_cannot_be_written_is_an_error(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([PROGRAM], input=json.dumps(job_of(draws=1)), stdout=full, stderr=subprocess.PIPE,
                                  text=True, timeout=100, check=False)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("standard output", done.stderr)

    def test_refusals(self):
        for job, words in [
            ("", "standard input"),
            ("[1, 2", "standard input"),
            ("[]", "expected one JSON object"),
            (job_of(draft=None), "draft: expected a word, got null"),
            (job_of(draft="medusa2"), "draft: 'medusa2' is not in this version"),
            (job_of(draft="replay"), "draft: expected a method that needs no earlier run"),
            (job_of(draft_tree="3,2"), "draft-tree: expected width x depth"),
            (job_of(draft_tree=[3]), "draft-tree: expected a word, got"),
            (job_of(draft_tree=2.5), "draft-tree: expected an integer from 1 to 1024, got 2.5"),
            (job_of(draft_tree=0), "draft-tree: expected an integer from 1 to 1024, got 0"),
            (job_of(draft_tree="auto"), 'draft-tree: expected a shape with verify = recursive, got "auto"'),
            (job_of(draft="ngram", draft_tree="auto"), "draft-tree: expected a shape with verify = recursive"),
            (job_of(draft="ar", draft_tree="wide"), "draft-tree: expected a chain"),
            (job_of(draft="ar", draft_tree=None, p={"": [0.5, 0.4]}), "expected probabilities that sum to 1"),
            (job_of(draft="ar", draft_tree=None, p={"": [0.5, 0.5]}), "p: expected rows of 4 probabilities"),
            (job_of(verify="best"), "verify: expected coupled, rejection, multi-round, k-seq, recursive or tokenswift-paper, got 'best'"),
            (job_of(draft="ar", verify="best"), "verify: expected coupled"),
            (job_of(verify="k-seq"), "verify: expected coupled or recursive with draft = rsd-s, got k-seq"),
            (job_of(draft="spectr"), "verify: expected coupled, multi-round or k-seq with draft = spectr, got recursive"),
            (job_of(draft="specinfer", verify="k-seq", p=[P, P]), "verify: expected coupled or multi-round with draft = specinfer"),
            (job_of(draft="specinfer", draft_tree="2x2", verify="multi-round", p=[P, P, P]), "at least 3 chains"),
            (job_of(p=None), "p: expected one table with draft = rsd-s, got 0"),
            (job_of(p=[P, P]), "p: expected one table with draft = rsd-s, got 2"),
            (job_of(q=None), "q: expected an object"),
            (job_of(q={}), 'expected probabilities for the empty context ""'),
            (job_of(q={"": []}), "expected probabilities that sum to 1"),
            (job_of(q={"": [0.5, 0.4]}), "expected probabilities that sum to 1, got 0.9"),
            (job_of(q={"": [1.5, -0.5, 0, 0]}), "expected probabilities >= 0"),
            (job_of(q={"": [1, "x"]}), "q: expected a list of probabilities"),
            (job_of(q={"": 1}), "q: expected a list of probabilities"),
            (job_of(q={**Q, "0": [0.5, 0.5]}), "expected rows of 4 probabilities"),
            (job_of(q={**Q, "4": Q[""]}), "expected contexts of ids below 4, got 4"),
            (job_of(q={**Q, "-1": Q[""]}), "expected contexts of ids below 4, got -1"),
            (job_of(q={**Q, "0,": Q[""]}), "expected contexts of ids joined by commas"),
            (job_of(p={"": [0.5, 0.5]}), "p: expected rows of 4 probabilities, as q has, got 2"),
            (job_of(emit=0), "emit: expected an integer from 1 to 1000, got 0"),
            (job_of(emit=-3), "emit: expected"),
            (job_of(emit=1.5), "emit: expected"),
            (job_of(emit=None), "emit: expected"),
            (job_of(draws=-1), "draws: expected"),
            (job_of(draws="many"), 'draws: expected an integer from 1 to 1000000000, got "many"'),
            (job_of(seed=-1), "seed: expected"),
            (job_of(seed=0.5), "seed: expected"),
            (job_of(seed=2.0**64), "seed: expected"),
            (job_of(temperature=1), "keys draft, draft-tree"),
        ]:
            code, answer, complaint = run(job)
            self.assertEqual((code, answer, len(complaint)), (2, None, 1), (words, complaint))
            self.assertIn(words, complaint[0])
            self.assertTrue(complaint[0].startswith("error: "), complaint)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
