#!/usr/bin/env python3
"""tests/tools/check_report.py on accepted and rejected reports, independent of this processor.

    check_report_test.py CTEST BUILD_FOLDER

The last cases get their report from kernels_test and ctest themselves: kernels_test skips the variants named in
LONGHAUL_TEST_WITHOUT as if the processor lacked them.
"""

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

SCRIPT = Path(__file__).resolve().parent / "check_report.py"
AVX2 = "avx2 fma"
NEEDED = "avx512f avx512bw avx512vl avx512dq avx512_vnni"
AVX512 = f"{AVX2} {NEEDED}"
NEEDS_AVX512 = f"avx512_fma needs processor flags {NEEDED}"
VARIANT = "Devices/KvTest.OddHeadsStandAlone/avx512_fma"

RAN = '<testcase name="ran" status="run"><system-out></system-out></testcase>'


def skipped(name, output, message="SKIP_REGULAR_EXPRESSION_MATCHED"):
    return (f"<testcase name={quoteattr(name)} status='notrun'><skipped message={quoteattr(message)}/>"
            f"<system-out>[ RUN      ] {escape(name)}\nkernels_testing.hpp:207: Skipped\n{escape(output)}\n\n[  SKIPPED ]</system-out></testcase>")


class Report(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name)
        self.file = self.folder / "report.xml"

    def judge(self, flags):
        command = [sys.executable, SCRIPT, self.file, *([] if flags is None else ["--flags", flags])]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def accepted(self, flags, summary):
        done = self.judge(flags)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, summary + "\n", ""))

    def refused(self, flags, *lines, summary):
        done = self.judge(flags)
        self.assertEqual((done.returncode, done.stdout), (1, summary + "\n"))
        self.assertEqual(done.stderr.splitlines(), list(lines))


class Written(Report):
    def report(self, *tests):
        self.file.write_text(f"<testsuite>{''.join(tests)}</testsuite>")

    def test_all_ran(self):
        self.report(RAN)
        self.accepted(None, "1 tests, 0 failed, 0 skipped (0 of them unexpected)")

    def test_variant_that_the_processor_lacks(self):
        self.report(RAN, skipped(VARIANT, NEEDS_AVX512))
        for flags in (AVX2, AVX512.replace(" avx512_vnni", ""), ""):
            self.accepted(flags, "2 tests, 0 failed, 1 skipped (0 of them unexpected)")

    def test_variant_that_the_processor_has(self):
        self.report(RAN, skipped(VARIANT, NEEDS_AVX512))
        self.refused(AVX512, f"{VARIANT}: skipped, but this processor has {NEEDED}",
                     summary="2 tests, 0 failed, 1 skipped (1 of them unexpected)")

    def test_emulated_variant_needs_what_it_says(self):
        name = "Devices/RowsTest.LayerNormIsAccurate/avx512_emulated"
        self.report(skipped(name, "avx512_emulated needs processor flags avx2 fma"))
        self.accepted("sse2", "1 tests, 0 failed, 1 skipped (0 of them unexpected)")
        self.refused(AVX2, f"{name}: skipped, but this processor has avx2 fma",
                     summary="1 tests, 0 failed, 1 skipped (1 of them unexpected)")

    def test_other_skips(self):
        self.report(skipped("slurm.cluster", "munged not installed", "SKIP_RETURN_CODE=77"),
                    skipped("Devices/KvTest.X/cuda", "cuda needs an NVIDIA GPU"),
                    skipped("Devices/KvTest.Y/cuda", NEEDS_AVX512), skipped("Unrelated.Test", NEEDS_AVX512),
                    skipped("missing", "", "Unable to find executable"),
                    '<testcase name="off" status="disabled"><system-out>Disabled</system-out></testcase>')
        other = "skipped without a valid reason (SKIP_REGULAR_EXPRESSION_MATCHED)"
        self.refused("", "slurm.cluster: skipped without a valid reason (SKIP_RETURN_CODE=77)",
                     f"Devices/KvTest.X/cuda: {other}", f"Devices/KvTest.Y/cuda: {other}", f"Unrelated.Test: {other}",
                     "missing: skipped without a valid reason (Unable to find executable)",
                     "off: expected to run, got disabled",
                     summary="6 tests, 0 failed, 6 skipped (6 of them unexpected)")

    def test_failures(self):
        self.report(RAN, '<testcase name="bad" status="fail"><failure message=""/></testcase>', skipped(VARIANT, NEEDS_AVX512))
        self.refused(AVX2, "bad: failed", summary="3 tests, 1 failed, 1 skipped (0 of them unexpected)")

    def test_nothing_ran(self):
        self.report()
        self.refused(AVX2, summary="0 tests, 0 failed, 0 skipped (0 of them unexpected)")
        for text in (None, "", "<testsuite>"):
            self.file.unlink() if text is None else self.file.write_text(text)
            done = self.judge(AVX2)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn("expected a report of ctest", done.stderr)


class OfKernelsTest(Report):
    """The registered names of the tests, their skip message, and ctest's report of them."""

    ctest, build = "", ""

    def run_ctest(self, pattern, without):
        (self.folder / "CTestTestfile.cmake").write_text(f'subdirs("{self.build}/tests")\n')
        subprocess.run([self.ctest, "--output-junit", self.file, "-R", pattern], cwd=self.folder, check=False, capture_output=True,
                       env={**os.environ, "LONGHAUL_TEST_WITHOUT": without})

    def test_without_avx512(self):
        self.run_ctest("^Devices/(KvTest.OddHeadsStandAlone|FusedContract.*)/avx512_fma( |$)", "avx512")
        count = self.file.read_text().count("<testcase ")
        self.assertGreater(count, 1)
        self.accepted(AVX2, f"{count} tests, 0 failed, {count} skipped (0 of them unexpected)")
        done = self.judge(AVX512)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr.count("skipped, but this processor has avx512f"), count, done.stderr)

    def test_without_avx2(self):
        self.run_ctest("^Devices/RowsTest.LayerNormIsAccurate/avx", "avx2 avx512")
        self.accepted("sse2", "4 tests, 0 failed, 4 skipped (0 of them unexpected)")
        self.assertEqual(self.judge(AVX2).stderr.count("skipped, but this processor has avx2 fma"), 2)


if __name__ == "__main__":
    OfKernelsTest.ctest, OfKernelsTest.build = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1])
