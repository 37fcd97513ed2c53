// Arbitrary bytes as config.json must give an InputError or a configuration whose sizes meet the guarantees of
// config.hpp.
//
//   clang++ -std=c++20 -g -O1 -ffp-contract=off -fsanitize=fuzzer,address,undefined -I. tests/fuzz/config_json_fuzz.cpp
//       engine/model/{config,rope}.cpp engine/json.cpp -o config_json_fuzz && ./config_json_fuzz -max_len=4096
#include <unistd.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "engine/error.hpp"
#include "engine/model/config.hpp"
#include "engine/model/model_plan.hpp"
#include "engine/model/rope.hpp"

namespace {

void require(bool holds) {
    if (!holds) std::abort();
}

void check(const longhaul::engine::ModelConfig& config) {
    require(config.num_heads > 0 && config.num_kv_heads > 0 && config.num_heads % config.num_kv_heads == 0);
    require(config.head_dim > 0 && config.head_dim % 2 == 0);
    require(longhaul::engine::num_parameters(config) > 0);
    for (const std::int32_t id : config.eos_ids) require(id >= 0 && id < config.vocab_size);
    const longhaul::engine::RopeTable rope(config);
    std::vector<float> cos(static_cast<std::size_t>(rope.num_pairs()));
    std::vector<float> sin(cos.size());
    rope.fill(config.max_positions - 1, config.max_positions, cos.data(), sin.data());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const std::filesystem::path folder =
        std::filesystem::temp_directory_path() / ("longhaul-config-fuzz-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder);
    std::filesystem::remove(folder / "config.json");  // overwriting in place would wait for the disk
    std::ofstream(folder / "config.json", std::ios::binary)
        .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
    try {
        check(longhaul::engine::ModelConfig::load(folder));
    } catch (const longhaul::InputError&) {
        // the expected result of nearly all inputs
    }
    return 0;
}
