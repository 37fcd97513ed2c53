// A model on one or several in-process ranks, for tests: takes a prompt, returns its logits.
#pragma once

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/kv/kv_cache.hpp"
#include "engine/model/model.hpp"
#include "engine/parallel/group.hpp"
#include "kernels/device.hpp"
#include "tests/engine/thread_group.hpp"

namespace longhaul::engine::testing {

inline const std::int64_t plenty = std::int64_t{1} << 30;

/// Logits [positions, vocab] of `tokens` at `positions`, fed in chunks of `chunk` rows to a model split over `ranks`
/// threads. All ranks must have the same logits; the caller checks this through `all_ranks`.
struct Run {
    std::vector<std::vector<float>> all_ranks;  // one [positions * vocab] per rank
    std::vector<std::int64_t> weight_bytes;     // resident, per rank
    std::vector<std::string> notices;           // of the first rank
    std::vector<std::string> loaded;            // how the weights were loaded, per rank
    [[nodiscard]] const std::vector<float>& logits() const { return all_ranks.front(); }
};

/// The logits of one forward pass over rows of one sequence.
inline std::vector<float> logits_of(Model& model, std::span<const ForwardRow> rows, const KvSequence& kv,
                                    const HiddenStates* states = nullptr) {
    const KvView view = kv.view();
    PassResult result = model.forward({.rows = rows, .sequences = std::span(&view, 1), .states = states});
    const std::span<const float> logits = result.logits.all();
    return {logits.begin(), logits.end()};
}

/// A copy of the row that requests logits.
inline ForwardRow wanted(ForwardRow row) {
    row.wants_logits = true;
    return row;
}

inline std::vector<float> run_rank(Model& model, const std::vector<std::int32_t>& tokens,
                                   const std::vector<std::int64_t>& positions, std::int64_t chunk) {
    KvPool pool(model.device(), model.kv_layouts(), plenty);
    KvSequence kv(pool);
    kv.reserve(static_cast<std::int64_t>(tokens.size()));
    std::vector<float> logits;
    for (std::size_t first = 0; first < tokens.size(); first += static_cast<std::size_t>(chunk)) {
        std::vector<ForwardRow> rows;
        for (std::size_t p = first; p < std::min(tokens.size(), first + static_cast<std::size_t>(chunk)); ++p) {
            ForwardRow row = text_row(tokens[p], static_cast<std::int64_t>(p));
            row.of_prompt = p + 1 < tokens.size();
            row.text_length = std::ssize(tokens);
            row.wants_logits = std::find(positions.begin(), positions.end(), row.position) != positions.end();
            rows.push_back(row);
        }
        const std::vector<float> part = logits_of(model, rows, kv);
        logits.insert(logits.end(), part.begin(), part.end());
        kv.set_committed(static_cast<std::int64_t>(first + rows.size()));
    }
    return logits;
}

/// Makes the device of one rank.
using DeviceMaker = std::function<std::unique_ptr<kernels::Device>()>;

/// Loads a model on `ranks` threads and calls `action` on each with its part. Rethrows what a rank throws.
inline void on_each_rank(const std::filesystem::path& folder, Precision precision, const DeviceMaker& make_device,
                         int ranks, const std::function<void(Model&, int rank)>& action,
                         std::optional<kernels::DType> kv = {}, const std::filesystem::path& packed_folder = {},
                         const std::filesystem::path& adapter = {}) {
    auto groups = make_thread_groups(ranks);
    std::vector<std::thread> workers;
    std::vector<std::string> errors(static_cast<std::size_t>(ranks));
    for (int r = 0; r < ranks; ++r) {
        workers.emplace_back([&, r] {
            try {
                const auto device = make_device();
                const auto model = Model::load(folder, precision, *device, *groups[static_cast<std::size_t>(r)], kv,
                                               packed_folder, adapter);
                action(*model, r);
            } catch (const std::exception& error) {
                errors[static_cast<std::size_t>(r)] = error.what();
            }
        });
    }
    for (std::thread& worker : workers) worker.join();
    for (const std::string& error : errors) {
        if (!error.empty()) throw std::runtime_error(error);
    }
}

inline Run run_model(const std::filesystem::path& folder, Precision precision, const DeviceMaker& make_device,
                     const std::vector<std::int32_t>& tokens, const std::vector<std::int64_t>& positions, int ranks = 1,
                     std::int64_t chunk = 64, std::optional<kernels::DType> kv = {},
                     const std::filesystem::path& packed_folder = {}, const std::filesystem::path& adapter = {}) {
    Run run;
    run.all_ranks.resize(static_cast<std::size_t>(ranks));
    run.weight_bytes.resize(static_cast<std::size_t>(ranks));
    run.loaded.resize(static_cast<std::size_t>(ranks));
    const auto action = [&](Model& model, int rank) {
        const auto r = static_cast<std::size_t>(rank);
        if (rank == 0) run.notices = model.notices();
        run.loaded[r] = model.load_report().how;
        run.weight_bytes[r] = model.resident_weight_bytes();
        run.all_ranks[r] = run_rank(model, tokens, positions, chunk);
    };
    on_each_rank(folder, precision, make_device, ranks, action, kv, packed_folder, adapter);
    return run;
}

inline Run run_model(const std::filesystem::path& folder, Precision precision, kernels::CpuVariant variant,
                     const std::vector<std::int32_t>& tokens, const std::vector<std::int64_t>& positions, int ranks = 1,
                     std::int64_t chunk = 64, int threads = 1, std::optional<kernels::DType> kv = {},
                     const std::filesystem::path& packed_folder = {}, const std::filesystem::path& adapter = {}) {
    const DeviceMaker make_device = [=] { return kernels::make_cpu_device(variant, threads); };
    return run_model(folder, precision, make_device, tokens, positions, ranks, chunk, kv, packed_folder, adapter);
}

}  // namespace longhaul::engine::testing
