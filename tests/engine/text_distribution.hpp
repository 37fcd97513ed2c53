// The distribution of the texts of a whole replica, beside the exact one, which is enumerated from the target's logits.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <vector>

#include "engine/sampling/pipeline.hpp"
#include "tests/engine/chi_square.hpp"
#include "tests/engine/replica_harness.hpp"

namespace longhaul::engine::testing {

constexpr std::int64_t texts_of_tokens = 3;

/// Four tokens are possible after each context, and each node has its own context.
inline SamplingParams four_tokens() {
    SamplingParams wanted;
    wanted.temperature = 1.3;
    wanted.top_k = 4;
    wanted.repetition_penalty = 1.2;
    wanted.penalty_window = 64;
    return wanted;
}

/// The target's distribution after `context`.
inline Distribution next_token(Model& model, const SamplingParams& sampling, const std::vector<std::int32_t>& context) {
    KvPool pool(model.device(), model.kv_layouts(), std::int64_t{1} << 40);
    KvSequence kv(pool);
    EXPECT_TRUE(kv.reserve(std::ssize(context)));
    std::vector<ForwardRow> rows;
    for (const std::int32_t token : context) rows.push_back(text_row(token, std::ssize(rows)));
    rows.back().wants_logits = true;
    const KvView view = kv.view();
    PassResult result = model.forward({.rows = rows, .sequences = std::span(&view, 1)});
    return LogitsPipeline(sampling, model.config().vocab_size).apply(result.logits.all(), {context, {}});
}

/// The probabilities of all texts of `length` tokens that `folder`'s model may write after `prompt`.
inline std::map<std::vector<std::int32_t>, double> texts_after(const std::vector<std::int32_t>& prompt,
                                                               const SamplingParams& sampling,
                                                               const std::filesystem::path& folder = tiny_model,
                                                               std::int64_t length = texts_of_tokens) {
    const auto device = kernels::make_cpu_device(kernels::available_cpu_variants().back(), 1);
    const auto group = make_local_group();
    const auto model = Model::load(folder, Precision::bf16, *device, *group);
    return joint_distribution(length, [&](const std::vector<std::int32_t>& text) {
        std::vector<std::int32_t> context = prompt;
        context.insert(context.end(), text.begin(), text.end());
        return next_token(*model, sampling, context);
    });
}

/// Continues `prompt` `num_texts` times with the drafts and the rule of `job`; drafts must be accepted as well as
/// rejected. Returns the p-value of a chi-square test of the texts against the target's distribution.
inline double target_distribution_p(Job job, const std::vector<std::int32_t>& prompt, std::int64_t num_texts,
                                    const SamplingParams& sampling = four_tokens(), std::size_t num_possible = 64) {
    const auto expected = texts_after(prompt, sampling);
    EXPECT_EQ(expected.size(), num_possible);
    job.options.batch = 16;
    job.generation.sampling = sampling;
    job.generation.max_tokens = texts_of_tokens;
    job.items = num_texts;
    for (std::int64_t item = 0; item < job.items; ++item) job.prompts[item] = prompt;
    const JobResult result = launch(job);
    std::map<std::vector<std::int32_t>, std::int64_t> counts;
    for (const auto& [index, item] : result.items) ++counts[item.tokens];
    const std::string name = job.options.draft.method->name + ", " + job.options.verify.name();
    EXPECT_GT(result.sum.accepted, job.items / 4) << name << ": drafts must be accepted";
    EXPECT_LT(result.sum.accepted, job.items * (texts_of_tokens - 1)) << name << ": and rejected";
    return chi_square_p(counts, expected);
}

inline void expect_distribution_of_target(const Job& job, const std::vector<std::int32_t>& prompt,
                                          std::int64_t num_texts) {
    EXPECT_GT(target_distribution_p(job, prompt, num_texts), 1e-4)
        << job.options.draft.method->name << ", " << job.options.verify.name();
}

}  // namespace longhaul::engine::testing
