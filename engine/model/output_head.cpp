#include "engine/model/output_head.hpp"

#include <algorithm>
#include <utility>

#include "kernels/numerics.hpp"

namespace longhaul::engine {
namespace {

std::size_t float_bytes(std::int64_t count) {
    return static_cast<std::size_t>(count) * sizeof(float);
}

}  // namespace

OutputHead::OutputHead(ComputeContext& context, Group& group, const ModelConfig& config, const Split& split,
                       const Weights& weights)
    : context_(context),
      group_(group),
      config_(config),
      split_(split),
      weights_(weights),
      host_memory_(!context.device.own_memory()),
      buffers_(std::make_shared<MemoryPool<kernels::Buffer>>(context.device)),
      stagings_(std::make_shared<MemoryPool<kernels::Staging>>(context.device)),
      local_(context.device),
      gathered_(context.device) {}

/// Input of the head's matmul, act [num_rows, padded embedding width].
const std::byte* OutputHead::input_of(const float* x, std::int64_t num_rows, const Norm& norm) {
    const std::byte* input = context_.normalised(norm, x, config_.hidden_size, num_rows);
    if (!weights_.project_out.data) return input;
    const std::int64_t width = config_.embedding_width();
    float* embedded = context_.projected.floats(num_rows * width);
    context_.device.matmul(weights_.project_out, input, split_.padded_hidden, num_rows, embedded);
    return context_.rounded(embedded, width, num_rows);
}

Logits OutputHead::logits(const float* x, std::int64_t num_rows, const Norm& norm) {
    if (num_rows == 0) {
        context_.finish();
        return {context_.device, config_.vocab_size};
    }
    const std::byte* input = input_of(x, num_rows, norm);
    const std::int64_t stride = kernels::padded_inputs(config_.embedding_width());
    const std::int64_t count = num_rows * split_.vocab;
    const auto product = [&](float* local) {
        context_.device.matmul(weights_.head_or_embedding(), input, stride, num_rows, local);
        if (weights_.head_bias) context_.device.add_bias(local, weights_.head_bias.as<float>(), num_rows, split_.vocab);
        if (config_.logits_scale != 1.0) context_.device.scale(local, static_cast<float>(config_.logits_scale), count);
        if (config_.logit_cap > 0) context_.device.soft_cap(local, static_cast<float>(config_.logit_cap), count);
    };
    if (split_.size > 1) {
        float* local = local_.floats(count);
        product(local);
        return of_all_ranks(local, num_rows);
    }
    PooledBuffer local(buffers_, float_bytes(count));
    product(local.floats());
    return of_one_rank(std::move(local), num_rows);
}

Logits OutputHead::of_one_rank(PooledBuffer local, std::int64_t num_rows) {
    const std::int64_t vocab = config_.vocab_size;  // equals split_.vocab: a single rank has no padding
    if (context_.device.token_chooser() != nullptr) {
        context_.finish();
        return {context_.device, vocab, num_rows, std::move(local), vocab, stagings_};
    }
    context_.sums.finish();
    if (host_memory_) return {context_.device, vocab, num_rows, std::move(local)};
    return {context_.device, vocab, num_rows, download(local.floats(), num_rows * vocab)};
}

// If the device chooses tokens and gathers the other ranks' parts without the host, the logits of the whole vocabulary
// stay on the device: the parts of each row are moved next to each other.
Logits OutputHead::of_all_ranks(float* local, std::int64_t num_rows) {
    const std::int64_t part_size = num_rows * split_.vocab;
    if (context_.device.token_chooser() != nullptr) {
        float* parts = gathered_.floats(part_size * split_.size);
        if (context_.sums.all_gather(local, parts, part_size)) {
            part_rows_.clear();
            for (std::int64_t r = 0; r < num_rows; ++r) {
                for (std::int64_t part = 0; part < split_.size; ++part)
                    part_rows_.push_back(static_cast<std::int32_t>(part * num_rows + r));
            }
            PooledBuffer whole(buffers_, float_bytes(part_size * split_.size));
            context_.device.gather(parts, part_rows_, split_.vocab, whole.floats());
            context_.finish();
            return {context_.device,  config_.vocab_size,         num_rows,
                    std::move(whole), split_.vocab * split_.size, stagings_};
        }
    }
    context_.sums.finish();
    if (host_memory_) return gathered_on_host(local, num_rows);
    const PooledStaging here = download(local, part_size);
    return gathered_on_host(here.floats(), num_rows);
}

// Gathers the parts of the vocabulary on the host, in order of token id.
Logits OutputHead::gathered_on_host(const float* local, std::int64_t num_rows) {
    const std::int64_t vocab = config_.vocab_size;
    const std::int64_t part_size = num_rows * split_.vocab;
    parts_.resize(part_size * split_.size);
    group_.all_gather(local, parts_.data(), part_size);
    PooledStaging whole(stagings_, float_bytes(num_rows * vocab));
    for (std::int64_t part = 0; part < split_.size; ++part) {
        const std::int64_t first = part * split_.vocab;
        const std::int64_t count = std::clamp<std::int64_t>(vocab - first, 0, split_.vocab);
        for (std::int64_t r = 0; r < num_rows; ++r) {
            std::copy_n(parts_.data() + part * part_size + r * split_.vocab, count, whole.floats() + r * vocab + first);
        }
    }
    return {context_.device, vocab, num_rows, std::move(whole)};
}

PooledStaging OutputHead::download(const float* from, std::int64_t count) {
    PooledStaging here(stagings_, float_bytes(count));
    context_.device.download(here.data(), reinterpret_cast<const std::byte*>(from), float_bytes(count));
    return here;
}

}  // namespace longhaul::engine
