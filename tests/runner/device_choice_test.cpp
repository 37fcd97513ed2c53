// The choice of a job's device: from the keys `device` and `kernels`, this build and this machine.
#include "runner/job/device_choice.hpp"

#include <gtest/gtest.h>

#include "engine/failure.hpp"
#include "engine/parallel/group.hpp"
#include "kernels/numerics.hpp"
#include "runner/host/world.hpp"
#include "runner/job/settings.hpp"

namespace longhaul::runner {
namespace {

constexpr Gpus no_build{.built = false, .visible = 0}, none{.built = true, .visible = 0},
    two{.built = true, .visible = 2};

std::string refusal(const Settings& settings, const Gpus& gpus) {
    try {
        check_device(settings, gpus);
    } catch (const UsageError& error) {
        return error.what();
    }
    return "";
}

TEST(DeviceChoice, AutoIsAGpuWhereThereIsOneAndNothingSpeaksAgainstIt) {
    struct Case {
        const char *device, *kernels;
        Gpus gpus;
        const char* resolved;
    };
    for (const Case& row :
         {Case{"auto", "auto", no_build, "cpu"}, Case{"auto", "auto", none, "cpu"}, Case{"auto", "auto", two, "cuda"},
          Case{"", "auto", two, "cuda"}, Case{"auto", "avx2", two, "cpu"}, Case{"auto", "reference", two, "cpu"},
          Case{"auto", "cuda", no_build, "cuda"}, Case{"auto", "cuda-exact", none, "cuda"},
          Case{"auto", "cuda-cublas", none, "cuda"}, Case{"cpu", "auto", two, "cpu"},
          Case{"cuda", "auto", no_build, "cuda"}}) {
        EXPECT_EQ(resolved_device(row.device, row.kernels, row.gpus), row.resolved)
            << row.device << " " << row.kernels << " " << row.gpus.visible;
    }
}

std::string on_tensor_cores(const std::string& generation) {
    return "cuda " + generation + ", tensor numerics " + std::to_string(kernels::tensor_numerics_version);
}

// The device kind is part of a job's identity because it decides the bits.
TEST(DeviceChoice, AGpuThatComputesAsTheProcessorIsOfItsKind) {
    Settings settings;
    settings.device = "cpu";
    EXPECT_EQ(device_kind(settings, "sm_90", ""), "cpu");
    settings.kernels = "amx-bf16";
    EXPECT_EQ(device_kind(settings, "sm_90", ""),
              "cpu amx-bf16, tile numerics " + std::to_string(kernels::tile_numerics_version));
    settings.kernels = "auto";
    settings.device = "cuda";
    EXPECT_EQ(device_kind(settings, "sm_90", ""), on_tensor_cores("sm_90"));
    EXPECT_EQ(device_kind(settings, "", ""), "cuda");
    settings.kernels = "cuda";
    EXPECT_EQ(device_kind(settings, "sm_80", ""), on_tensor_cores("sm_80"));
    settings.kernels = "cuda-exact";
    EXPECT_EQ(device_kind(settings, "sm_80", ""), "cpu");
}

// Only where it helps: such a processor, bf16, and kernels that the user did not choose otherwise.
TEST(DeviceChoice, CheckNamesFasterKernels) {
    Settings settings;
    settings.device = "cpu";
    EXPECT_EQ(
        faster_kernels(settings, true),
        "here kernels = amx-bf16 reads prompts several times as fast, computes batches faster and single tokens a "
        "little more slowly, with a text of its own");
    EXPECT_EQ(faster_kernels(settings, false), "");
    for (const char* kernels : {"amx-bf16", "avx512", "reference"}) {
        settings.kernels = kernels;
        EXPECT_EQ(faster_kernels(settings, true), "") << kernels;
    }
    settings.kernels = "amx";
    EXPECT_NE(faster_kernels(settings, true), "");
    settings.precision = "int8";
    EXPECT_EQ(faster_kernels(settings, true), "");
    settings.precision = "bf16";
    settings.device = "cuda";
    EXPECT_EQ(faster_kernels(settings, true), "");
}

// A library's sums depend on its version and on the GPU, and ranks' partial sums do not add up to those of one rank.
TEST(DeviceChoice, ALibrarysBitsBelongToItsVersionTheGpuAndTheSplit) {
    Settings settings;
    settings.device = "cuda";
    settings.kernels = "cuda-cublas";
    settings.tensor_parallel = 2;
    EXPECT_EQ(device_kind(settings, "sm_90", "cuBLASLt 13.1.0 on 132 multiprocessors"),
              on_tensor_cores("sm_90") + ", cuBLASLt 13.1.0 on 132 multiprocessors, tensor-parallel 2");
}

// Sums in NCCL's order depend on the number of ranks, whatever computes the parts.
TEST(DeviceChoice, SumsByNcclBelongToTheSplit) {
    Settings settings;
    settings.device = "cuda";
    settings.all_reduce = "nccl";
    settings.tensor_parallel = 2;
    EXPECT_EQ(device_kind(settings, "sm_90", ""), on_tensor_cores("sm_90") + ", sums by NCCL, tensor-parallel 2");
    settings.kernels = "cuda-exact";
    EXPECT_EQ(device_kind(settings, "sm_90", ""), "cuda-exact sm_90, sums by NCCL, tensor-parallel 2");
    settings.kernels = "cuda-cublas";
    EXPECT_EQ(device_kind(settings, "sm_90", "cuBLASLt 13.1.0 on 132 multiprocessors"),
              on_tensor_cores("sm_90") + ", cuBLASLt 13.1.0 on 132 multiprocessors, sums by NCCL, tensor-parallel 2");
    constexpr Gpus with_nccl{.built = true, .visible = 2, .nccl = true};
    EXPECT_EQ(refusal(settings, with_nccl), "");
    EXPECT_EQ(refusal(settings, two),
              "job: all-reduce: expected ordered, got 'nccl'; this program was built without NCCL: configure it where "
              "nccl.h is");
}

TEST(DeviceChoice, SaysWhatIsMissingForAGpu) {
    Settings settings;
    settings.device = "cuda";
    EXPECT_EQ(refusal(settings, two), "");
    EXPECT_EQ(refusal(settings, no_build),
              "job: device: expected auto or cpu, got 'cuda'; this program was built without GPU kernels: configure it "
              "with -DLONGHAUL_CUDA=ON");
    EXPECT_EQ(refusal(settings, none),
              "job: device: expected auto or cpu, got 'cuda'; the driver shows this process no GPU: see nvidia-smi and "
              "CUDA_VISIBLE_DEVICES, under Slurm request one (--gpus-per-node)");
    settings.kernels = "cuda-exact";
    EXPECT_EQ(refusal(settings, no_build),
              "job: kernels: expected auto, reference, avx2, avx512, amx or amx-bf16, got 'cuda-exact'; this program "
              "was built "
              "without GPU kernels: configure it with -DLONGHAUL_CUDA=ON");
    settings.device = "cpu";
    settings.kernels = "auto";
    EXPECT_EQ(refusal(settings, no_build), "");
    const std::vector<Assignment> file{{"device", "cuda", "j.cfg:8"}};
    EXPECT_TRUE(refusal(parse_settings(file, {}, "j.cfg", {}), no_build).starts_with("j.cfg:8: device: expected "));
    const Settings given = parse_settings(file, {{"kernels", "cuda", "command line"}}, "j.cfg", {});
    EXPECT_TRUE(refusal(given, no_build).starts_with("command line: kernels: expected "));
}

// Also where the ranks of a group agree on it.
TEST(DeviceChoice, AGpuThatFailsWhileWeightsLoadIsNoBugOfOurs) {
    const auto alone = engine::make_local_group();
    try {
        engine::agree(*alone, [] { throw kernels::DeviceError("CUDA: out of memory"); });
        FAIL() << "agreed";
    } catch (const Error& error) {
        EXPECT_STREQ(error.what(),
                     "device: expected no device error, got 'CUDA: out of memory'; checkpoints are kept: run again");
    }
    try {
        engine::agree(*alone, [] { throw std::logic_error("no such page"); });
        FAIL() << "agreed";
    } catch (const Error& error) {
        EXPECT_STREQ(error.what(), "internal: expected no failure here, got 'no such page'; please report it");
    }
}

TEST(DeviceChoice, AGpuThatFailsIsNoBugOfOurs) {
    Failure failure;
    try {
        throw kernels::DeviceError(
            "CUDA: uncorrectable ECC error encountered (cudaErrorECCUncorrectable) in synchronize");
    } catch (const std::exception&) {
        failure = current_failure();
    }
    EXPECT_EQ(failure.code, ExitCode::error);
    EXPECT_EQ(
        failure.line,
        "device: expected no device error, got 'CUDA: uncorrectable ECC error encountered (cudaErrorECCUncorrectable) "
        "in synchronize'; checkpoints are kept: run again");
}

}  // namespace
}  // namespace longhaul::runner
