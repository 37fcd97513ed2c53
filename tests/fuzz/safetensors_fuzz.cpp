// Arbitrary bytes as model.safetensors must give an InputError or tensors that are inside the file.
//
//   clang++ -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -I. tests/fuzz/safetensors_fuzz.cpp
//       engine/model/safetensors.cpp engine/json.cpp -lxxhash -o safetensors_fuzz && ./safetensors_fuzz -max_len=4096
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "engine/error.hpp"
#include "engine/model/safetensors.hpp"

namespace {

/// The sum of all bytes of all tensors: the reads let the address sanitizer check their bounds.
std::uint64_t sum_of_bytes(const longhaul::engine::SafetensorsFolder& folder) {
    std::uint64_t sum = folder.fingerprint();
    for (const auto& [name, view] : folder.tensors()) {
        for (std::int64_t i = 0; i < view.num_bytes; ++i) sum += static_cast<std::uint8_t>(view.data[i]);
        longhaul::engine::SafetensorsFolder::drop_pages(view.data, view.num_bytes);
    }
    return sum;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    static const std::filesystem::path folder =
        std::filesystem::temp_directory_path() / ("longhaul-safetensors-fuzz-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder);
    std::filesystem::remove(folder / "model.safetensors");  // overwriting in place would wait for the disk
    std::ofstream(folder / "model.safetensors", std::ios::binary)
        .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
    try {
        const auto opened = longhaul::engine::SafetensorsFolder::open(folder);
        if (sum_of_bytes(opened) == 1) return 0;  // keeps the compiler from removing the reads
    } catch (const longhaul::InputError&) {
        // the expected result of nearly all inputs
    }
    return 0;
}
