// Chooses tokens on the GPU, in the stream of its device.
#pragma once

#include "kernels/cuda/choose_part.hpp"
#include "kernels/cuda/decide_part.hpp"
#include "kernels/token_chooser.hpp"

namespace longhaul::kernels::cuda {

class CudaTokenChooser final : public TokenChooser {
  public:
    /// `stream` and `ring` must outlive the chooser.
    CudaTokenChooser(const Stream& stream, PinnedRing& ring) : stream_(stream), ring_(ring) {}

    /// Upper bound of the device memory used for passes of this size, in bytes.
    [[nodiscard]] static std::int64_t bytes(const PassSize& pass) {
        return pass.logit_rows * ChoosePart::row_bytes + DecidePart::bytes(pass);
    }

    // choose.cu
    void choose(float* logits, std::int64_t stride, std::int64_t vocab_size, std::span<const Choice> choices,
                std::span<std::int32_t> tokens) override;
    void draw(float* logits, std::int64_t stride, std::int64_t vocab_size, std::span<const Choice> choices,
              std::int64_t count, std::span<Drawn> drawn) override;

    // decide.cu
    void decide(float* logits, std::int64_t stride, std::int64_t vocab_size, TrialRule rule,
                std::span<const NodeTrials> nodes, std::span<Decided> decided) override;

  private:
    /// Waits until the copy is complete.
    template <typename T>
    void download(std::span<T> to, const T* from) {
        copy(stream_, to.data(), reinterpret_cast<const std::byte*>(from), to.size_bytes());
        stream_.synchronize();
    }

    const Stream& stream_;
    PinnedRing& ring_;
    ChoosePart choosing_;
    DecidePart deciding_;
};

}  // namespace longhaul::kernels::cuda
