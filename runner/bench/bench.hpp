// `longhaul bench`: measures the engine's speed next to the machine's ceilings (bandwidth, peak FLOP/s) in the same
// run. Measurements alternate, and a share is a median of pairs, because the speed of shared machines drifts.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/json.hpp"
#include "engine/model/model.hpp"
#include "engine/parallel/group.hpp"
#include "kernels/device.hpp"
#include "runner/bench/ceilings.hpp"
#include "runner/bench/timed_device.hpp"
#include "runner/host/world.hpp"
#include "runner/job/settings.hpp"

namespace longhaul::runner {

/// A number of a line and its format in the table: value * factor, with `decimals` digits.
struct BenchColumn {
    const char* key;
    const char* title;
    double factor = 1;
    int decimals = 0;
};

/// Lines as JSON objects. The table shows only `columns`, `--json` shows all numbers. A column is as wide as its title,
/// because lines are printed before the last one is known.
struct BenchTable {
    std::string title;
    std::vector<BenchColumn> columns;
    std::vector<nlohmann::ordered_json> lines;
    std::vector<BenchTable> details;  ///< tables with details of this table's lines
};

/// Input of all benchmarks.
struct BenchSetup {
    Settings settings;
    const World* world = nullptr;          ///< the ranks that measure together; nullptr: only this process
    std::unique_ptr<engine::Group> group;  ///< of all ranks, as one tensor-parallel engine
    int threads = 1;                       ///< per rank
    std::unique_ptr<kernels::Device> device;
    std::unique_ptr<Ceilings> ceilings;  ///< of the device; created on first use
    TimedDevice* timed = nullptr;        ///< the device itself if the parts of a pass are measured, else nullptr
    engine::ModelConfig shape;           ///< from --shape, or of the model folder
    std::string shape_name;
    std::int64_t rows = 0;       ///< per pass; 0: the benchmark's own list of sizes
    std::int64_t context = 512;  ///< positions before the rows of decode and verify
    std::string model;           ///< folder; "": random weights
    /// rounds of passes, each with its own lines; rounds of speculation, with medians over them
    std::int64_t rounds = 1;
    // Of speculation; "" or empty: the benchmark's own list.
    std::string tree;                 ///< draft-tree
    std::vector<double> acceptances;  ///< probability that a draft continues an accepted path
    std::string draft_shape;          ///< of a draft model whose passes are part of the time; "": drafts cost nothing
    std::string draft;                ///< with draft_shape: the method
    /// Called for each line as soon as it is measured, because benchmarks of large models take minutes.
    std::function<void(const BenchTable& so_far)> line_done;

    void add(BenchTable& table, nlohmann::ordered_json line) const {
        table.lines.push_back(std::move(line));
        if (line_done) line_done(table);
    }
};

/// Passes of the whole model: "decode", "verify", "prefill", or "passes" for all of them.
BenchTable bench_passes(BenchSetup& setup, const std::string& what);
/// One layer's attention: 1K to 100K positions, 1 to 32 nodes, 1 to 8 query heads per KV head.
BenchTable bench_attention(BenchSetup& setup);
/// Sampling: from logits to the next token.
BenchTable bench_sampling(BenchSetup& setup);
/// Cost of trees and verification in one step, next to the target's pass over the tree.
BenchTable bench_drafts(BenchSetup& setup);
/// Draft and target passes of `draft = self` by the length of the text.
BenchTable bench_self(BenchSetup& setup);
/// Drafts of a draft layer, `draft = eagle` and `lyanna`.
BenchTable bench_layers(BenchSetup& setup);
/// Speculation at a given acceptance against plain decoding; the texts are compared.
BenchTable bench_speculation(BenchSetup& setup);

/// All-reduce over the ranks through shared memory, by our messages and by the MPI library, alternating.
BenchTable bench_all_reduce(BenchSetup& setup);

/// The setup's model, split over its group: loaded, or random weights of its shape. `precision`: by default the job's.
std::unique_ptr<engine::Model> bench_model(BenchSetup& setup, std::optional<engine::Precision> precision = {});

/// Random values with magnitudes of about 2^-7 to 2^-6, of either sign. Also usable as half as many f32.
std::vector<std::uint16_t> random_bf16(std::size_t count);
/// Fills pages with random keys and values: memory never written to is not read at the speed of memory.
void fill_kv(kernels::Device& device, const kernels::KvLayout& layout, std::span<std::byte* const> pages);

/// Common model shapes by their number of parameters. Throws UsageError for an unknown name.
const engine::ModelConfig& bench_shape(const std::string& name);

double bench_median(std::vector<double> values);
double seconds_of(const std::function<void()>& action);

/// Timing of `run`, next to the ceilings measured right before each repetition by all ranks at once and summed. The
/// peak is that of the instructions for `weights`; attention's operations count at the same rate. Collective over the
/// group.
struct BenchTiming {
    double seconds = 0;              ///< median
    double bandwidth = 0, peak = 0;  ///< of the machine, medians; peak 0: unknown
    double share = 0;                ///< median of (time at the binding ceiling / time taken)
};
BenchTiming time_against_ceilings(BenchSetup& setup, kernels::DType weights, double bytes, double flops, int repeats,
                                  const std::function<void()>& run);

}  // namespace longhaul::runner
