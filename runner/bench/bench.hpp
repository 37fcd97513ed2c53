// `longhaul bench`: how fast the engine is on this machine, next to what the machine can do, both measured in one run
// and in turn: shared machines drift, so a share is a median of pairs.
#pragma once

#include <functional>
#include <memory>
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

/// A number of a line and how the table shows it: value * factor with so many decimals.
struct BenchColumn {
    const char* key;
    const char* title;
    double factor = 1;
    int decimals = 0;
};

/// Lines as JSON objects; the table shows the columns, `--json` all of them. A column is as wide as its title, since
/// lines are shown before the last is known.
struct BenchTable {
    std::string title;
    std::vector<BenchColumn> columns;
    std::vector<nlohmann::ordered_json> lines;
    std::vector<BenchTable> details;  ///< tables that explain lines of this one
};

/// What all benchmarks are given.
struct BenchSetup {
    Settings settings;
    const World* world = nullptr;          ///< the ranks that measure together; nullptr: this process alone
    std::unique_ptr<engine::Group> group;  ///< all of them, as one tensor-parallel engine
    int threads = 1;                       ///< of a rank
    std::unique_ptr<kernels::Device> device;
    std::unique_ptr<Ceilings> ceilings;  ///< of the device, once they are asked for
    TimedDevice* timed = nullptr;        ///< the device, where the parts of a pass are asked for
    engine::ModelConfig shape;           ///< of a name, or of the model folder
    std::string shape_name;
    std::int64_t rows = 0;    ///< of a pass; 0: several, as the benchmark has them
    std::string model;        ///< folder; "": random weights
    std::int64_t rounds = 1;  ///< of passes, each with lines of its own; of speculation, whose medians are shown
    std::string tree;         ///< of speculation; "": several
    /// Told of each line as soon as it is measured; benchmarks take minutes with large models.
    std::function<void(const BenchTable& so_far)> line_done;

    void add(BenchTable& table, nlohmann::ordered_json line) const {
        table.lines.push_back(std::move(line));
        if (line_done) line_done(table);
    }
};

/// Passes of the whole model: "decode", "verify", "prefill".
BenchTable bench_passes(BenchSetup& setup, const std::string& what);
/// Attention alone, 1K to 100K positions, 1 to 32 nodes, 1 to 8 query heads a KV head.
BenchTable bench_attention(BenchSetup& setup);
/// From logits to the next token.
BenchTable bench_sampling(BenchSetup& setup);
/// Trees and verification of one step, next to the target's pass over them.
BenchTable bench_drafts(BenchSetup& setup);
/// Drafts of a known acceptance against plain decoding, the text compared.
BenchTable bench_speculation(BenchSetup& setup);
/// From a start to the first token: cold and warm, packed anew and mapped.
BenchTable bench_start(BenchSetup& setup);

/// Sums over the ranks through shared memory, by our messages and by the library's, in turn.
BenchTable bench_all_reduce(BenchSetup& setup);

/// The model of the setup: loaded, or random weights of its shape, split over its group.
std::unique_ptr<engine::Model> bench_model(BenchSetup& setup);

/// Shapes that people know, by their size in parameters. Throws UsageError for another name.
const engine::ModelConfig& bench_shape(const std::string& name);

double bench_median(std::vector<double> values);

/// Seconds of `run`, next to the ceilings (the peak by the instruction for such weights, attention's operations counted
/// as theirs) measured right before each repetition, by all ranks at once and added up. Collective over the group.
struct BenchTiming {
    double seconds = 0;              ///< median
    double bandwidth = 0, peak = 0;  ///< of the machine, medians; peak 0: not known
    double share = 0;                ///< median of (time at the nearer ceiling / time taken)
};
BenchTiming time_against_ceilings(BenchSetup& setup, kernels::DType weights, double bytes, double flops, int repeats,
                                  const std::function<void()>& run);

}  // namespace longhaul::runner
