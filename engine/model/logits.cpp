#include "engine/model/logits.hpp"

#include <algorithm>

#include "kernels/flush_denormals.hpp"

namespace longhaul::engine {

TokenColumns::TokenColumns(kernels::Device& device, std::vector<std::int32_t> tokens)
    : tokens_(std::move(tokens)), there_(device, tokens_.size() * sizeof(std::int32_t)) {
    device.upload(there_.data(), tokens_.data(), there_.num_bytes());
}

Logits::Logits(kernels::Device& device, std::int64_t vocab_size, std::int64_t num_rows, PooledBuffer rows)
    : device_(&device),
      vocab_size_(vocab_size),
      num_rows_(num_rows),
      rows_(std::move(rows)),
      on_host_(rows_.floats()) {}

Logits::Logits(kernels::Device& device, std::int64_t vocab_size, std::int64_t num_rows, PooledStaging rows)
    : device_(&device),
      vocab_size_(vocab_size),
      num_rows_(num_rows),
      here_(std::move(rows)),
      on_host_(here_.floats()) {}

Logits::Logits(kernels::Device& device, std::int64_t vocab_size, std::int64_t num_rows, PooledBuffer rows,
               std::int64_t stride, PooledStaging::Pool staging)
    : device_(&device),
      vocab_size_(vocab_size),
      num_rows_(num_rows),
      rows_(std::move(rows)),
      staging_(std::move(staging)),
      on_device_(rows_.floats()),
      stride_(stride),
      came_(static_cast<std::size_t>(num_rows), false) {}

/// Allocates host memory for all rows at once, so that spans returned earlier stay valid.
void Logits::make_room() {
    const auto num_bytes = static_cast<std::size_t>(num_rows_ * vocab_size_) * sizeof(float);
    if (here_.num_bytes() < num_bytes) here_ = PooledStaging(staging_, num_bytes);
}

std::span<const float> Logits::row(std::int64_t row) & {
    const auto count = static_cast<std::size_t>(vocab_size_);
    if (on_device_ == nullptr) return {on_host_ + row * vocab_size_, count};
    make_room();
    if (!came_[row]) {
        device_->download(place_of(row), reinterpret_cast<const std::byte*>(on_device_ + row * stride_),
                          count * sizeof(float));
        came_[row] = true;
    }
    return {place_of(row), count};
}

std::span<const float> Logits::all() & {
    const auto count = static_cast<std::size_t>(num_rows_ * vocab_size_);
    if (on_device_ == nullptr) return {on_host_, count};
    make_room();
    if (stride_ == vocab_size_) {
        device_->download(here_.data(), reinterpret_cast<const std::byte*>(on_device_), count * sizeof(float));
        came_.assign(came_.size(), true);
    }
    for (std::int64_t r = 0; r < num_rows_; ++r) static_cast<void>(row(r));
    return {here_.floats(), count};
}

Logits Logits::with_added(std::span<const std::int32_t> rows, const float* added, const TokenColumns& columns) const {
    const std::int64_t count = std::ssize(rows);
    const auto bytes = [count](std::int64_t width) { return static_cast<std::size_t>(count * width) * sizeof(float); };
    if (on_device_ != nullptr) {
        PooledBuffer sums = rows_.another(bytes(stride_));
        device_->gather(on_device_, rows, stride_, sums.floats());
        if (columns.size() > 0) {
            device_->add_columns(sums.floats(), stride_, added, columns.size(), columns.on_device(), count,
                                 columns.size());
        }
        return {*device_, vocab_size_, count, std::move(sums), stride_, staging_};
    }
    std::vector<float> here(static_cast<std::size_t>(count * columns.size()));
    if (!here.empty()) device_->download(here.data(), reinterpret_cast<const std::byte*>(added), bytes(columns.size()));
    const auto add_to = [&](float* sums) {
        const kernels::FlushDenormals flush;  // as on a device
        for (std::int64_t i = 0; i < count; ++i, sums += vocab_size_) {
            std::copy_n(on_host_ + rows[i] * vocab_size_, vocab_size_, sums);
            const float* const more = here.data() + i * columns.size();
            for (std::int64_t j = 0; j < columns.size(); ++j) sums[columns.tokens()[j]] += more[j];
        }
    };
    if (rows_.num_bytes() > 0) {
        PooledBuffer sums = rows_.another(bytes(vocab_size_));
        add_to(sums.floats());
        return {*device_, vocab_size_, count, std::move(sums)};
    }
    PooledStaging sums = here_.another(bytes(vocab_size_));
    add_to(sums.floats());
    return {*device_, vocab_size_, count, std::move(sums)};
}

Logits Logits::widened(const TokenColumns& columns, std::int64_t vocab_size, const kernels::Buffer& floor) const {
    const auto bytes = static_cast<std::size_t>(num_rows_ * vocab_size) * sizeof(float);
    if (on_device_ != nullptr) {
        PooledBuffer wide = rows_.another(bytes);
        const std::vector<std::int32_t> first(static_cast<std::size_t>(num_rows_), 0);
        device_->gather(floor.as<float>(), first, vocab_size, wide.floats());
        device_->add_columns(wide.floats(), vocab_size, on_device_, stride_, columns.on_device(), num_rows_,
                             columns.size());
        return {*device_, vocab_size, num_rows_, std::move(wide), vocab_size, staging_};
    }
    const auto fill = [&](float* wide) {
        std::fill_n(wide, num_rows_ * vocab_size, absent_logit);
        for (std::int64_t i = 0; i < num_rows_; ++i) {
            for (std::int64_t j = 0; j < columns.size(); ++j)
                wide[i * vocab_size + columns.tokens()[j]] = on_host_[i * vocab_size_ + j];
        }
    };
    if (rows_.num_bytes() > 0) {
        PooledBuffer wide = rows_.another(bytes);
        fill(wide.floats());
        return {*device_, vocab_size, num_rows_, std::move(wide)};
    }
    PooledStaging wide = here_.another(bytes);
    fill(wide.floats());
    return {*device_, vocab_size, num_rows_, std::move(wide)};
}

std::vector<std::int32_t> Logits::choose(std::span<const kernels::Choice> choices) {
    std::vector<std::int32_t> tokens(choices.size());
    device_->token_chooser()->choose(on_device_, stride_, vocab_size_, choices, tokens);
    return tokens;
}

std::vector<kernels::Drawn> Logits::draw(std::span<const kernels::Choice> choices, std::int64_t count,
                                         std::int64_t vocab_size) {
    std::vector<kernels::Drawn> drawn(choices.size() * static_cast<std::size_t>(1 + count));
    device_->token_chooser()->draw(on_device_, stride_, vocab_size, choices, count, drawn);
    return drawn;
}

std::vector<kernels::Decided> Logits::decide(kernels::TrialRule rule, std::span<const kernels::NodeTrials> nodes) {
    std::vector<kernels::Decided> decided(nodes.size());
    device_->token_chooser()->decide(on_device_, stride_, vocab_size_, rule, nodes, decided);
    return decided;
}

}  // namespace longhaul::engine
