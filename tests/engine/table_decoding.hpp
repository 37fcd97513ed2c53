// Speculative decoding over probability tables instead of models, with the engine's own draft methods and verification
// rules. Shared by the statistical tests and the program rule-table.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/draft/drafter.hpp"
#include "engine/draft/tree_growth.hpp"
#include "engine/error.hpp"
#include "engine/replica/replica.hpp"
#include "engine/verify/verifier.hpp"
#include "kernels/scalar_math.hpp"

namespace longhaul::engine::testing {

using Tokens = std::vector<std::int32_t>;

/// Next-token probabilities by context (all tokens emitted so far). A context that is not listed uses the row of the
/// empty context. Each row has one entry per token of the vocabulary.
class Table {
  public:
    Table() = default;
    explicit Table(const std::map<Tokens, std::vector<double>>& rows) {
        const auto first = rows.find({});
        if (first == rows.end()) throw UsageError("rule-table: expected probabilities for the empty context \"\"");
        vocab_size_ = first->second.size();
        for (const auto& [context, row] : rows) {
            for (const std::int32_t token : context) {
                if (token < 0 || static_cast<std::size_t>(token) >= vocab_size_)
                    throw UsageError("rule-table: expected contexts of ids below " + std::to_string(vocab_size_) +
                                     ", got " + std::to_string(token));
            }
            if (row.size() != vocab_size_)
                throw UsageError("rule-table: expected rows of " + std::to_string(vocab_size_) +
                                 " probabilities, as for the empty context, got " + std::to_string(row.size()));
            rows_[context] = distribution(row);
        }
    }

    [[nodiscard]] const Distribution& after(const Tokens& context) const {
        const auto listed = rows_.find(context);
        return listed != rows_.end() ? listed->second : rows_.at({});
    }

    [[nodiscard]] std::size_t vocab_size() const { return vocab_size_; }

    static Distribution distribution(std::span<const double> row) {
        double sum = 0;
        for (const double p : row) {
            if (!(p >= 0) || !std::isfinite(p)) throw UsageError("rule-table: expected probabilities >= 0");
            sum += p;
        }
        if (!(std::abs(sum - 1) < 1e-3))
            throw UsageError("rule-table: expected probabilities that sum to 1, got " + std::to_string(sum));
        Distribution made;
        for (std::size_t v = 0; v < row.size(); ++v) {
            if (row[v] == 0) continue;
            made.ids.push_back(static_cast<std::int32_t>(v));
            made.log_weights.push_back(kernels::scalar::det_log(row[v] / sum));
            made.q.push_back(row[v] / sum);
        }
        return made;
    }

  private:
    std::map<Tokens, Distribution> rows_;
    std::size_t vocab_size_ = 0;
};

struct TableJob {
    DraftOptions draft;  ///< method and tree
    VerifyRule verify;
    std::vector<Table> p;  ///< one per draft model; none for ar and ngram
    Table q;
    std::int64_t emit = 2;  ///< tokens per text
};

/// Generates texts, each with its own random numbers.
class TableDecoder {
  public:
    explicit TableDecoder(TableJob job) : job_(std::move(job)) {
        const DraftMethod& method = *job_.draft.method;
        const auto num_models = static_cast<std::int64_t>(job_.p.size());
        check_lossless(job_.verify, method, num_models, job_.draft.tree);
        verifier_ = make_verifier(job_.verify);
        if (!method.drafts()) verifier_ = make_verifier(VerifyRule::coupled);
        if (method.make_trees == nullptr && method.part != DraftPart::none)
            throw UsageError("rule-table: draft: expected a method whose drafts are tables, got " + method.name);
        if (method.make_trees == nullptr) {
            without_model_ = make_drafter({job_.draft});
            return;
        }
        const std::int64_t copy = method.copies_target ? 1 : 0;
        if (num_models < method.min_folders + copy || num_models > method.max_folders + copy)
            throw UsageError("rule-table: p: expected " +
                             std::string(method.max_folders > 1 ? "1 to 8 tables" : "one table") +
                             " with draft = " + method.name + ", got " + std::to_string(num_models));
        trees_ = method.make_trees(tree_of(method, job_.draft.tree, num_models), num_models);
    }

    /// Accepts any combination of trees and rule, matching or not.
    TableDecoder(TableJob job, std::unique_ptr<TreeMethod> trees, std::unique_ptr<Verifier> verifier)
        : job_(std::move(job)), trees_(std::move(trees)), verifier_(std::move(verifier)) {}

    Tokens text(std::uint64_t key) {
        Tokens text;
        const auto drafter = without_model_ ? without_model_->make_sequence({}) : nullptr;
        Tokens context{root};  // acts as a one-token prompt
        if (drafter) drafter->begin(context);
        while (static_cast<std::int64_t>(text.size()) < job_.emit) {
            TokenTree tree;
            tree.reset(context.back());
            grow(tree, text, context, key, drafter.get());
            const auto position = static_cast<std::int64_t>(context.size());
            const auto target = [&](std::int32_t node) -> const Distribution& {
                return job_.q.after(context_of(text, tree, node));
            };
            const Verdict verdict = verifier_->verify(tree, target, key, position);
            for (const std::int32_t node : verdict.nodes) text.push_back(tree.token[static_cast<std::size_t>(node)]);
            text.push_back(verdict.next_token);
            context.insert(context.end(), text.end() - static_cast<std::ptrdiff_t>(verdict.nodes.size()) - 1,
                           text.end());
            if (drafter) {
                const Observation seen{.sequence = drafter.get(),
                                       .context = context,
                                       .num_new = static_cast<std::int64_t>(verdict.nodes.size()) + 1,
                                       .path = verdict.nodes};
                without_model_->observe(std::span(&seen, 1), {});
            }
            ++target_calls;
            accepted += static_cast<std::int64_t>(verdict.nodes.size());
            drafted += tree.num_nodes() - 1;
        }
        text.resize(static_cast<std::size_t>(job_.emit));
        return text;
    }

    std::int64_t target_calls = 0, accepted = 0, drafted = 0;

  private:
    static constexpr std::int32_t root = 1 << 20;  // not a token of any table

    static Tokens context_of(const Tokens& text, const TokenTree& tree, std::int32_t node) {
        Tokens context = text;
        for (const std::int32_t above : tree.path_to(node))
            context.push_back(tree.token[static_cast<std::size_t>(above)]);
        return context;
    }

    void grow(TokenTree& tree, const Tokens& text, const Tokens& context, std::uint64_t key,
              SequenceDrafter* drafter) const {
        const Noise noise{key, job_.verify == VerifyRule::coupled ? Noise::Kind::shared : Noise::Kind::own};
        if (drafter != nullptr) {
            Proposal proposal{
                .sequence = drafter, .context = context, .noise = noise, .max_depth = 1024, .tree = &tree};
            without_model_->propose(std::span(&proposal, 1));
            return;
        }
        const auto growth = trees_->begin(tree, noise, static_cast<std::int64_t>(context.size()), 1024);
        std::vector<Distribution> drafts;
        while (!growth->wanted().empty()) {
            drafts.clear();
            for (const TreeGrowth::Wanted& wanted : growth->wanted()) {
                const Table& p = job_.p[static_cast<std::size_t>(wanted.model)];
                drafts.push_back(p.after(context_of(text, tree, wanted.node)));
            }
            growth->grow(drafts);
        }
    }

    TableJob job_;
    std::unique_ptr<TreeMethod> trees_;
    std::unique_ptr<Drafter> without_model_;
    std::unique_ptr<Verifier> verifier_;
};

}  // namespace longhaul::engine::testing
