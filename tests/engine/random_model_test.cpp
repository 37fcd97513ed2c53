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

/// The first layer is packed, the second is copied from it.
TEST(RandomModel, ExpertsShareOneAllocationOfADevicesOwnMemory) {
    ModelConfig config = three_layers();
    config.num_layers = 2;
    config.expert_intermediate_size = 48;
    config.layers.front().experts = {.count = 5, .per_token = 2};
    testing::RemoteDevice device(kernels::make_cpu_device(kernels::available_cpu_variants().back(), 1));
    const auto host = kernels::make_cpu_device(kernels::available_cpu_variants().back(), 1);
    const auto model = random_model(config, Precision::int8, device, *make_local_group(), 1, {});
    const auto on_host = random_model(config, Precision::int8, *host, *make_local_group(), 1, {});
    for (std::size_t i = 0; i < 2; ++i) {
        const LayerWeights& layer = model->weights.layers[i];
        const kernels::Buffer& memory = layer.expert_memory;
        ASSERT_EQ(layer.experts.size(), 5U);
        EXPECT_FALSE(on_host->weights.layers[i].expert_memory);
        for (std::size_t e = 0; e < 5; ++e) {
            for (const auto matrix : {&Expert::gate_up, &Expert::down}) {
                const kernels::Buffer& data = (layer.experts[e].*matrix).data;
                EXPECT_GE(data.data(), memory.data());
                EXPECT_LE(data.data() + data.num_bytes(), memory.data() + memory.num_bytes());
                EXPECT_EQ(bytes_of(device, layer.experts[e].*matrix),
                          bytes_of(*host, on_host->weights.layers[i].experts[e].*matrix));
            }
        }
    }
}

}  // namespace
}  // namespace longhaul::engine
