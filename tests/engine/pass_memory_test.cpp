// Scratch memory of passes: a plan that is too small would take memory promised to keys and values.
#include "engine/model/pass_memory.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/parallel/group.hpp"
#include "tests/engine/model_harness.hpp"
#include "tests/engine/remote_device.hpp"

namespace longhaul::engine {
namespace {

/// What a first pass of `num_rows` rows allocates, all with logits.
std::int64_t allocated_by_pass(Model& model, testing::RemoteDevice& device, std::int64_t num_rows) {
    KvPool pool(device, model.kv_layouts(), std::int64_t{1} << 26);
    KvSequence kv(pool);
    kv.reserve(num_rows);
    std::vector<ForwardRow> rows;
    for (std::int64_t at = 0; at < num_rows; ++at) {
        rows.push_back(testing::wanted(text_row(static_cast<std::int32_t>(7 * at % 96), at)));
        rows.back().of_prompt = at + 1 < num_rows;
    }
    std::int64_t bytes = 0;
    device.allocates = [&](std::size_t size) { bytes += static_cast<std::int64_t>(size); };
    device.releases = [&](std::size_t size) { bytes -= static_cast<std::int64_t>(size); };
    testing::logits_of(model, rows, kv);
    device.allocates = device.releases = nullptr;
    return bytes;
}

TEST(PassMemory, IsWhatThePlanSaysInEveryFamily) {
    constexpr std::int64_t num_rows = 24;
    for (const auto& folder : std::filesystem::directory_iterator(LONGHAUL_TEST_DATA "/parity")) {
        if (!folder.is_directory()) continue;
        SCOPED_TRACE(folder.path().filename().string());
        for (const Precision precision : {Precision::bf16, Precision::fp32}) {
            testing::RemoteDevice device(kernels::make_cpu_device(kernels::available_cpu_variants().back(), 1));
            const auto group = make_local_group();
            const auto model = Model::load(folder.path(), precision, device, *group);
            const std::int64_t planned =
                pass_bytes(model->config(), Split(model->config(), 0, 1), precision, num_rows, num_rows);
            const std::int64_t allocated = allocated_by_pass(*model, device, num_rows);
            EXPECT_LE(allocated, planned);
            // A plan does not know how widely a cache stores queries, and takes the widest buffer for all kinds of
            // layers.
            EXPECT_GT(3 * allocated, 2 * planned);
        }
    }
}

}  // namespace
}  // namespace longhaul::engine
