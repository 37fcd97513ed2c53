// Question: how close are the kernels to the GPU's limits?
// Machine: one NVIDIA GPU. The limits, measured and printed in the same run, are the bandwidth of cudaMemcpyAsync from
// device to device and the peak of mma.sync on registers.
// Build: cmake --build build --target gpu_bench, or with -DLONGHAUL_KERNELS_ONLY=ON where there is only CUDA.
// Command: gpu_bench [--exact|--cublas] [--quick] [--only=SECTION,…]; --list names the sections.
// Answer: time, GB/s of the bytes that must move and their share of the copy's bandwidth, TFLOP/s and their share of
// the peak, for the matmuls and the attention of an 8 B Llama (hidden 4096, 32 query and 8 KV heads of 128,
// feed-forward 14336), for operations on single rows, and for choosing tokens from rows of 128K logits. Values are
// medians; each matmul runs over enough copies of its matrix to exceed the L2 cache. Then all layers of a pass,
// launched as a model does, in graphs and kernel by kernel; and (prompt, tree) each operation of a layer beside them:
// 2048 rows of a prompt at 6144 positions, and trees at 512. --cublas: matmuls of 512 rows and more by cuBLASLt, as for
// prompts with `kernels = cuda-cublas` (including the conversion of weights to rows). A section that fails does not
// stop the others. tests/bench/gpu_peer.py measures the same with PyTorch.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/bench/gpu_bench.hpp"
#include "tests/bench/gpu_bench_layers.hpp"

namespace {

using namespace longhaul::kernels;

struct Section {
    const char* name;
    bool quick;  ///< whether --quick includes it
    GpuLaunches launches;
    std::function<void(Bench&)> run;
};

/// All layers of passes of two models. `how`: the label for the way they are launched.
void passes(Bench& bench, const std::string& how) {
    for (const Layers& layers : {layers_8b, layers_1b}) {
        LayerBench of(bench, layers, 64);
        for (const std::int64_t num_rows : {1, 8, 64}) of.pass({1000, num_rows, false}, how);
    }
}

/// A chunk of a prompt, as the engine cuts it.
void prompt(Bench& bench) {
    LayerBench(bench, layers_8b, 2048).profile({6144, 2048, true});
}

void trees(Bench& bench) {
    LayerBench of(bench, layers_8b, 64);
    for (const std::int64_t num_rows : {1, 64}) {
        of.profile({512, num_rows, false});
        of.head(num_rows);
    }
}

std::vector<Section> sections_of(GpuArithmetic arithmetic) {
    constexpr auto graphs = GpuLaunches::graphs, single = GpuLaunches::single;
    const Section products{"products", true, graphs, [](Bench& bench) { bench.products(DType::bf16, "bf16"); }};
    const Section chunk{"prompt", true, graphs, prompt};
    // Everything else is the same without the library.
    if (arithmetic == GpuArithmetic::library) return {products, chunk};
    return {{"smoke", true, graphs, [](Bench& bench) { bench.smoke(); }},
            {"layers", true, graphs, [](Bench& bench) { passes(bench, "in graphs"); }},
            products,
            {"attention", true, graphs, [](Bench& bench) { bench.attention(DType::bf16, "bf16"); }},
            chunk,
            {"tree", true, graphs, trees},
            {"rows", true, graphs, [](Bench& bench) { bench.rows(); }},
            {"choices", true, graphs, [](Bench& bench) { bench.choices(); }},
            {"host-memory", true, graphs, [](Bench& bench) { bench.host_memory(); }},
            {"layers-single", true, single, [](Bench& bench) { passes(bench, "one by one"); }},
            {"collectives", false, graphs, [](Bench& bench) { bench.collectives(); }},
            {"products-int8", false, graphs, [](Bench& bench) { bench.products(DType::int8, "int8"); }},
            {"products-int4", false, graphs, [](Bench& bench) { bench.products(DType::int4, "int4"); }},
            {"attention-int8", false, graphs, [](Bench& bench) { bench.attention(DType::int8, "int8"); }}};
}

struct Options {
    bool quick = false, list = false;
    GpuArithmetic arithmetic = GpuArithmetic::tensor;
    std::vector<std::string> only;  ///< names of sections; empty: all
};

/// Throws std::invalid_argument for an unknown argument.
Options parse(std::span<char* const> arguments) {
    Options options;
    for (const std::string argument : arguments) {
        if (argument == "--quick") {
            options.quick = true;
        } else if (argument == "--list") {
            options.list = true;
        } else if (argument == "--exact") {
            options.arithmetic = GpuArithmetic::exact;
        } else if (argument == "--cublas") {
            options.arithmetic = GpuArithmetic::library;
        } else if (argument.starts_with("--only=")) {
            std::istringstream names(argument.substr(7));
            for (std::string name; std::getline(names, name, ',');) options.only.push_back(name);
        } else {
            throw std::invalid_argument("expected --exact, --cublas, --quick, --only=SECTION,… or --list, got '" +
                                        argument + "'");
        }
    }
    return options;
}

/// The sections to run. Throws std::invalid_argument for an unknown name.
std::vector<Section> chosen(const Options& options) {
    std::vector<Section> all = sections_of(options.arithmetic), some;
    for (const std::string& name : options.only) {
        const auto found = std::find_if(all.begin(), all.end(), [&](const Section& s) { return s.name == name; });
        if (found == all.end()) throw std::invalid_argument("expected a section of --list, got '" + name + "'");
        some.push_back(*found);
    }
    if (!options.only.empty()) return some;
    std::erase_if(all, [&](const Section& section) { return options.quick && !section.quick; });
    return all;
}

/// Runs the sections; one that throws is reported, and the next one starts with a new device. Returns how many threw.
int run(const std::vector<Section>& sections, const Options& options) {
    int failed = 0;
    std::unique_ptr<Bench> bench;
    GpuLaunches launches{};
    for (const Section& section : sections) {
        try {
            if (bench == nullptr || launches != section.launches) {
                bench.reset();
                bench = std::make_unique<Bench>(options.arithmetic, section.launches, options.quick);
                launches = section.launches;
            }
            section.run(*bench);
        } catch (const std::exception& error) {
            std::printf("error: %s: %s\n", section.name, error.what());
            std::fflush(stdout);
            bench.reset();
            ++failed;
        }
    }
    return failed;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        const Options options = parse({argv + 1, argv + argc});
        const std::vector<Section> sections = chosen(options);
        if (options.list) {
            for (const Section& section : sections) std::printf("%s\n", section.name);
            return 0;
        }
        return run(sections, options) > 0 ? 1 : 0;
    } catch (const std::invalid_argument& error) {
        std::fprintf(stderr, "error: command line: %s\n", error.what());
        return 2;
    }
}
