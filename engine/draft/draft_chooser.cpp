#include "engine/draft/draft_chooser.hpp"

#include <stdexcept>
#include <utility>

namespace longhaul::engine {

DraftChooser::DraftChooser(std::vector<TreeChooser> methods) : trees_(std::move(methods)) {
    if (trees_.empty() || trees_.size() > 2) throw std::logic_error("a drafter has one method or chooses between two");
    if (trees_.size() == 2) methods_.emplace();
}

TreeLimits DraftChooser::choose(const TreeChooser::Batch& batch) {
    batch_ = batch;
    if (methods_ && batch.sequences > 0)
        method_ = static_cast<std::size_t>(methods_->choose({.sequences = batch.sequences,
                                                             .context = batch.context,
                                                             .pauses = trees_[methods_->preferred()].pauses()}));
    TreeLimits limits = trees_[method_].choose(batch);
    limits.method = static_cast<std::int64_t>(method_);
    return limits;
}

bool DraftChooser::feeds() const {
    if (!methods_) return !trees_.front().pauses();
    for (std::size_t method = 0; method < trees_.size(); ++method) {
        const bool considered = !methods_->decided() || methods_->preferred() == static_cast<std::int64_t>(method);
        if (considered && trees_[method].follows_text() && !trees_[method].pauses()) return true;
    }
    return false;
}

void DraftChooser::verified(const TokenTree& tree, std::span<const std::int32_t> accepted, bool ended,
                            std::int64_t model_passes) {
    trees_[method_].verified(tree, accepted, ended, model_passes);
}

void DraftChooser::record(const TreeChooser::Step& step) {
    trees_[method_].record(step);
    for (std::size_t other = 0; other < trees_.size(); ++other) {
        if (other != method_) trees_[other].pass_over(step);
    }
    if (methods_ && step.measured && step.sequences == batch_.sequences && batch_.sequences > 0)
        methods_->record(step.draft_seconds + step.forward_seconds + step.verify_seconds, step.tokens);
}

}  // namespace longhaul::engine
