// Random models of benchmarks: layers have equal weights, each in memory of its own, as a benchmark must read them all.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/model/model_loading.hpp"
#include "tests/engine/remote_device.hpp"
#include "tests/engine/thread_group.hpp"

namespace longhaul::engine {
namespace {

ModelConfig three_layers() {
    ModelConfig config;
    config.vocab_size = 100;
    config.hidden_size = 64;
    config.intermediate_size = 96;
    config.num_layers = 3;
    config.num_heads = config.num_kv_heads = 2;
    config.head_dim = 32;
    config.max_positions = 512;
    config.tied_embeddings = false;
    return config;
}

std::vector<std::byte> bytes_of(kernels::Device& device, const kernels::Matrix& matrix) {
    std::vector<std::byte> bytes(matrix.data.num_bytes());
    device.download(bytes.data(), matrix.data.data(), bytes.size());
    return bytes;
}

void expect_equal_layers(kernels::Device& device, Precision precision, const Group& rank) {
    const auto model = random_model(three_layers(), precision, device, rank, 1, {});
    ASSERT_EQ(model->weights.layers.size(), 3U);
    const LayerWeights& first = model->weights.layers.front();
    for (std::size_t i = 1; i < 3; ++i) {
        const LayerWeights& layer = model->weights.layers[i];
        for (const auto matrix :
             {&LayerWeights::qkv, &LayerWeights::output, &LayerWeights::gate_up, &LayerWeights::down}) {
            EXPECT_NE((layer.*matrix).data.data(), (first.*matrix).data.data());
            EXPECT_EQ(bytes_of(device, layer.*matrix), bytes_of(device, first.*matrix));
            EXPECT_EQ((layer.*matrix).num_outputs, (first.*matrix).num_outputs);
            EXPECT_EQ((layer.*matrix).gated, (first.*matrix).gated);
        }
    }
    EXPECT_NE(bytes_of(device, model->weights.embedding), bytes_of(device, model->weights.head));
}

TEST(RandomModel, HasEqualLayersInMemoryOfTheirOwn) {
    const kernels::CpuVariant variant = kernels::available_cpu_variants().back();
    for (const Precision precision : {Precision::bf16, Precision::fp32, Precision::int8, Precision::int4}) {
        for (const auto& rank : testing::make_thread_groups(2)) {
            testing::RemoteDevice device(kernels::make_cpu_device(variant, 1));
            expect_equal_layers(device, precision, *rank);
        }
        expect_equal_layers(*kernels::make_cpu_device(variant, 1), precision, *make_local_group());
    }
}

}  // namespace
}  // namespace longhaul::engine
