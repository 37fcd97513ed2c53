// Verifies the trees of a batch from the logits of one target pass. Called by the replica's step. If the device can
// choose tokens (kernels/token_chooser.hpp), it decides all nodes in one call and the logits stay in device memory.
// Otherwise the host decides with the same arithmetic, only at the nodes that its walk reaches.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/model/logits.hpp"
#include "engine/sampling/params.hpp"
#include "engine/sampling/pipeline.hpp"
#include "engine/token_tree.hpp"
#include "engine/verify/verifier.hpp"

namespace longhaul::engine {

/// A tree of the batch and the logits rows of its nodes.
struct TreeToVerify {
    TokenTree* tree = nullptr;
    std::span<const std::int32_t> context;  ///< tokens of the sequence; the last one is the root
    const SamplingParams* sampling = nullptr;
    std::uint64_t noise_key = 0;
    std::int64_t first_row = 0;            ///< logits row of the root; node i has row first_row + i
    std::span<const std::int32_t> forced;  ///< teacher-forced sequences: the tokens after the root; else empty
};

class BatchVerifier {
  public:
    BatchVerifier(VerifyRule rule, kernels::Device& device, std::int64_t vocab_size);

    /// One verdict per tree, in order. The same on every rank.
    std::vector<Verdict> verify(std::span<const TreeToVerify> trees, Logits& logits);

  private:
    /// The device's decision at each node of a tree; nullopt: the host has to decide.
    using NodeDecisions = std::vector<std::optional<Decision>>;

    std::vector<NodeDecisions> decide_on_device(std::span<const TreeToVerify> trees, Logits& logits);
    template <typename Tell>
    void each_choice(const TreeToVerify& tree, const Tell& tell);
    void choose_tokens(std::span<const TreeToVerify> trees, Logits& logits, std::vector<NodeDecisions>& decisions);
    void decide_nodes(std::span<const TreeToVerify> trees, Logits& logits, kernels::TrialRule rule,
                      std::vector<NodeDecisions>& decisions);
    void fetch_drafts(TokenTree& tree, std::int32_t node) const;
    Verdict walk(const TreeToVerify& asked, const NodeDecisions& decisions, Logits& logits);

    kernels::Device& device_;
    std::unique_ptr<Verifier> rule_;
    LogitsPipeline pipeline_;
    std::deque<std::vector<std::int32_t>> penalised_;  ///< penalised tokens; the choices of a call point into it
};

}  // namespace longhaul::engine
