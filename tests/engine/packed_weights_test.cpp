// A model loaded from packed weights equals the original: same bits and same notices, on every split. Faulty packed
// files never fail the run.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/engine/model_harness.hpp"

namespace longhaul::engine {
namespace {

namespace fs = std::filesystem;

const std::vector<std::int32_t> tokens = {1, 5, 9, 2, 33, 7, 8, 40};
const std::vector<std::int64_t> positions = {0, 3, 7};

class PackedWeights : public ::testing::Test {
  protected:
    PackedWeights() {
        folder_ = fs::temp_directory_path() / ("longhaul-packed-weights-" + std::to_string(::getpid()));
        fs::remove_all(folder_);
        fs::create_directories(folder_);
    }
    ~PackedWeights() override { fs::remove_all(folder_); }

    static testing::Run run(const fs::path& model, Precision precision, kernels::CpuVariant variant, int ranks,
                            const fs::path& packed) {
        return testing::run_model(model, precision, variant, tokens, positions, ranks, 64, 2, {}, packed);
    }
    static bool all_begin(const std::vector<std::string>& lines, const std::string& beginning) {
        return std::all_of(lines.begin(), lines.end(), [&](const auto& line) { return line.starts_with(beginning); });
    }

    fs::path folder_;
};

TEST_F(PackedWeights, GiveTheSameBits) {
    for (const char* name : {"llama-default", "qwen2", "llama-shards"}) {
        const fs::path model = fs::path(LONGHAUL_TEST_DATA) / "parity" / name;
        const fs::path packed = folder_ / name;
        for (const Precision precision : {Precision::bf16, Precision::fp32, Precision::int8, Precision::int4}) {
            for (const int ranks : {1, 2}) {
                for (const kernels::CpuVariant variant : kernels::available_cpu_variants()) {
                    SCOPED_TRACE(std::string(name) + " " + std::to_string(static_cast<int>(precision)) + " " +
                                 std::to_string(ranks));
                    const testing::Run plain = run(model, precision, variant, ranks, {});
                    const testing::Run written = run(model, precision, variant, ranks, packed);
                    const testing::Run mapped = run(model, precision, variant, ranks, packed);
                    EXPECT_EQ(plain.all_ranks, written.all_ranks);
                    EXPECT_EQ(plain.all_ranks, mapped.all_ranks);
                    EXPECT_EQ(plain.weight_bytes, mapped.weight_bytes);
                    EXPECT_TRUE(all_begin(plain.loaded, "packed from the model's files"));
                    EXPECT_TRUE(all_begin(mapped.loaded, "mapped from "));
                    EXPECT_EQ(plain.notices, mapped.notices);
                }
            }
        }
    }
}

TEST_F(PackedWeights, NoticesOfNanStay) {
    const fs::path model = folder_ / "model";
    fs::copy(fs::path(LONGHAUL_TEST_DATA) / "parity/llama-default", model);
    {
        std::fstream file(model / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(-4, std::ios::end);
        file.write("\xff\xff\xff\xff", 4);  // the last value of the last tensor
    }
    const kernels::CpuVariant variant = kernels::available_cpu_variants().back();
    const auto bad = [](const testing::Run& run) {
        return std::count_if(run.notices.begin(), run.notices.end(),
                             [](const auto& line) { return line.find("holds NaN or infinity") != std::string::npos; });
    };
    for (const int ranks : {1, 2}) {  // the first rank reports it, whichever rank holds it
        EXPECT_EQ(bad(run(model, Precision::bf16, variant, ranks, {})), 1);
        EXPECT_EQ(bad(run(model, Precision::bf16, variant, ranks, folder_ / "packed")), 1);
        EXPECT_EQ(bad(run(model, Precision::bf16, variant, ranks, folder_ / "packed")), 1);
    }
}

TEST_F(PackedWeights, WithoutAFolderTheRunGoesOn) {
    std::ofstream(folder_ / "file") << "no folder";
    const fs::path model = fs::path(LONGHAUL_TEST_DATA) / "parity/llama-default";
    const kernels::CpuVariant variant = kernels::available_cpu_variants().back();
    const testing::Run plain = run(model, Precision::fp32, variant, 1, {});
    const testing::Run without = run(model, Precision::fp32, variant, 1, folder_ / "file");
    EXPECT_EQ(plain.all_ranks, without.all_ranks);
    ASSERT_EQ(without.notices.size(), 1U);
    EXPECT_NE(without.notices.front().find("continuing without packed weights"), std::string::npos);
}

TEST_F(PackedWeights, AnotherModelInItsPlaceIsSeen) {
    const fs::path model = folder_ / "model", packed = folder_ / "packed";
    const kernels::CpuVariant variant = kernels::available_cpu_variants().back();
    fs::copy(fs::path(LONGHAUL_TEST_DATA) / "parity/llama-default", model);
    run(model, Precision::fp32, variant, 1, packed);
    // The fingerprint does not cover bytes in the middle of a large tensor; the file's modification time shows the
    // change.
    const auto size = static_cast<std::int64_t>(fs::file_size(model / "model.safetensors"));
    {
        std::fstream file(model / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(size / 2);
        file.write("\x00\x00\x00\x00", 4);
    }
    fs::last_write_time(model / "model.safetensors", fs::file_time_type::clock::now() + std::chrono::hours(1));
    const testing::Run changed = run(model, Precision::fp32, variant, 1, packed);
    EXPECT_EQ(changed.all_ranks, run(model, Precision::fp32, variant, 1, {}).all_ranks);
    EXPECT_TRUE(changed.loaded.front().starts_with("packed into "));
}

}  // namespace
}  // namespace longhaul::engine
