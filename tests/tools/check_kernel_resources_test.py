#!/usr/bin/env python3
"""check_kernel_resources.py on logs of ptxas with and without spills."""

import unittest

from check_kernel_resources import faults_of


def compiled(name, architecture="sm_90", stack=0, stores=0, loads=0):
    mangled = f"_ZN8longhaul7kernels4cuda62_GLOBAL__N__b0_9_matmul_cu_9770cda3{len(name)}{name}ILi4ELi8EEEvNS1_9MatmulJobE"
    return f"""[7/9] Building CUDA object kernels/matmul.cu.o
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '{mangled}' for '{architecture}'
ptxas info    : Function properties for {mangled}
    {stack} bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
ptxas info    : Used 128 registers, used 1 barriers, 520 bytes cmem[0]
"""


class KernelResources(unittest.TestCase):
    def faults(self, log, architectures=("sm_90",)):
        return faults_of(log, architectures, ["hot", "hotter"])

    def test_nothing_is_wrong(self):
        self.assertEqual(self.faults(compiled("hot") + compiled("hotter")), [])

    def test_spills_and_stack_are_faults(self):
        for wrong in ({"stack": 8}, {"stores": 4}, {"loads": 4}):
            (fault,) = self.faults(compiled("hot") + compiled("hotter", **wrong))
            self.assertIn("hotter: expected no stack frame and no spills for sm_90", fault)

    def test_other_kernels_may(self):
        self.assertEqual(self.faults(compiled("hot") + compiled("hotter") + compiled("cold", stack=256)), [])

    def test_a_missing_kernel_is_a_fault(self):
        (fault,) = self.faults(compiled("hotter"))
        self.assertIn("hot: expected it in the log for sm_90, got none", fault)

    def test_serialized_wgmma_are_a_fault(self):
        log = compiled("hot") + compiled("hotter")
        log += "ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient "
        log += "register resources for the wgmma pipeline in the function '_Z3hotv'\n"
        (fault,) = self.faults(log)
        self.assertIn("one by one due to insufficient register resources for the wgmma pipeline in _Z3hotv", fault)

    def test_a_kernel_may_be_for_one_architecture(self):
        log = compiled("hot", "sm_90a") + compiled("hot", "sm_80", stores=4)
        self.assertEqual(faults_of(log, ["sm_80", "sm_90a"], ["hot@sm_90a"]), [])
        self.assertEqual(len(faults_of(log, ["sm_80", "sm_90a"], ["hot@sm_80"])), 1)

    def test_every_architecture_counts(self):
        log = compiled("hot") + compiled("hotter")
        self.assertEqual(len(self.faults(log, ["sm_80", "sm_90"])), 2)
        log += compiled("hot", "sm_80", stores=4) + compiled("hotter", "sm_80")
        self.assertEqual(len(self.faults(log, ["sm_80", "sm_90"])), 1)
        self.assertEqual(self.faults(log), [])


if __name__ == "__main__":
    unittest.main()
