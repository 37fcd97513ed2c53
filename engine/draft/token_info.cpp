#include "engine/draft/token_info.hpp"

namespace longhaul::engine {

TokenInfo::TokenInfo(Model& target, const DraftLayerConfig& config, const TokenInfoWeights& weights)
    : target_(target),
      weights_(weights),
      rank_(config.token_info_rank),
      columns_(target.device(), config.info_tokens),
      has_info_(static_cast<std::size_t>(target.config().vocab_size), false),
      low_(target.device()),
      wide_(target.device()),
      normed_(target.device()) {
    for (const std::int32_t token : config.info_tokens) has_info_[token] = true;
}

const float* TokenInfo::rows(std::span<const std::int32_t> tokens) {
    constexpr std::int32_t none = -1;  // enters as zeros, and zeros remain zeros
    std::vector<ForwardRow> entering;
    for (const std::int32_t token : tokens) entering.push_back(text_row(has_info_[token] ? token : none, 0));
    const HiddenStates embedded = target_.embed(entering);
    kernels::Device& device = target_.device();
    ComputeContext& context = target_.context();
    const std::int64_t count = std::ssize(tokens), width = columns_.size();
    float* const low = low_.floats(count * rank_);
    device.matmul(weights_.down, context.rounded(embedded.data(), embedded.width(), count), weights_.down.num_inputs,
                  count, low);
    float* const wide = wide_.floats(count * width);
    device.matmul(weights_.up, context.rounded(low, rank_, count), weights_.up.num_inputs, count, wide);
    std::byte* const normed = normed_.bytes(static_cast<std::size_t>(count * width) * sizeof(float));
    apply_norm(device, weights_.norm, wide, count, width, kernels::DType::f32, normed, width);
    return reinterpret_cast<const float*>(normed);
}

Logits TokenInfo::added(const Logits& logits, std::span<const std::int32_t> rows,
                        std::span<const std::int32_t> tokens) {
    return logits.with_added(rows, this->rows(tokens), columns_);
}

}  // namespace longhaul::engine
