#include "engine/model/rope.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/scalar_math.hpp"

// Every float below is a float tensor in transformers, and every double a Python number. The rounding of a frequency is
// multiplied by the position (for example 100,000), so the place of each rounding affects attention over long
// distances.

namespace longhaul::engine {
namespace {

namespace scalar = kernels::scalar;

constexpr double two_pi = 0x1.921fb54442d18p+2;

/// theta^(2i / dims) for the pairs of `dims` rotated dimensions.
std::vector<float> periods(const RopeConfig& rope, std::int64_t dims) {
    const double log_theta = scalar::det_log(static_cast<float>(rope.theta));
    std::vector<float> result(static_cast<std::size_t>(dims / 2));
    for (std::size_t i = 0; i < result.size(); ++i) {
        const float exponent = static_cast<float>(2 * i) / static_cast<float>(dims);
        result[i] = static_cast<float>(scalar::det_exp(static_cast<double>(exponent) * log_theta));
    }
    return result;
}

/// Llama 3: short wavelengths keep their frequency, wavelengths beyond the trained context / low_freq_factor are
/// stretched by `factor`, and those in between are blended linearly.
float llama3_frequency(float frequency, const RopeConfig& rope) {
    const auto trained = static_cast<double>(rope.original_max_positions);
    const auto longest = static_cast<float>(trained / rope.low_freq_factor);
    const auto shortest = static_cast<float>(trained / rope.high_freq_factor);
    const auto factor = static_cast<float>(rope.factor);
    const float wavelength = static_cast<float>(two_pi) / frequency;
    if (wavelength > longest) return frequency / factor;
    if (wavelength < shortest) return frequency;
    const float cycles = static_cast<float>(trained) / wavelength;
    const float blend = (cycles - static_cast<float>(rope.low_freq_factor)) /
                        static_cast<float>(rope.high_freq_factor - rope.low_freq_factor);
    const float stretched = (1.0F - blend) * frequency / factor;
    const float kept = blend * frequency;
    return stretched + kept;
}

/// YaRN (arXiv 2309.00071, section 3.2): the dimension whose wave makes `rotations` turns in the trained context.
double yarn_dimension(double rotations, const RopeConfig& rope, std::int64_t dims) {
    const double cycles = static_cast<double>(rope.original_max_positions) / (rotations * two_pi);
    return static_cast<double>(dims) * scalar::det_log(cycles) / (2.0 * scalar::det_log(rope.theta));
}

/// Linear ramp between dimensions `low` and `high`: from unchanged frequencies to frequencies divided by the factor.
struct YarnRamp {
    double low;
    double high;

    YarnRamp(const RopeConfig& rope, std::int64_t dims)
        : low(yarn_dimension(rope.beta_fast, rope, dims)), high(yarn_dimension(rope.beta_slow, rope, dims)) {
        if (rope.truncate) {
            low = std::floor(low);
            high = std::ceil(high);
        }
        low = std::max(low, 0.0);
        high = std::min(high, static_cast<double>(dims - 1));
        if (low == high) high += 0.001;  // as in transformers, avoids a division by zero
    }

    /// Weight of the stretched frequency for pair `i` of dimensions, in [0, 1].
    [[nodiscard]] float stretched(std::size_t i) const {
        const float along = (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
        return std::clamp(along, 0.0F, 1.0F);
    }
};

float yarn_frequency(float period, float stretched, const RopeConfig& rope) {
    const float keep = 1.0F - stretched;
    const float kept_part = (1.0F / period) * keep;
    const float stretched_part = (1.0F / (static_cast<float>(rope.factor) * period)) * (1.0F - keep);
    return stretched_part + kept_part;
}

double yarn_mscale(double factor, double mscale) {
    return factor <= 1.0 ? 1.0 : 0.1 * mscale * scalar::det_log(factor) + 1.0;
}

double yarn_attention_factor(const RopeConfig& rope) {
    if (rope.attention_factor != 0.0) return rope.attention_factor;
    if (rope.mscale != 0.0 && rope.mscale_all_dim != 0.0) {
        return yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim);
    }
    return yarn_mscale(rope.factor, 1.0);
}

/// LongRoPE (arXiv 2402.13753): the attention temperature of Hugging Face.
double longrope_attention_factor(const RopeConfig& rope) {
    if (rope.attention_factor != 0.0) return rope.attention_factor;
    if (rope.factor <= 1.0) return 1.0;
    return std::sqrt(1.0 +
                     scalar::det_log(rope.factor) / scalar::det_log(static_cast<double>(rope.original_max_positions)));
}

std::vector<float> divided_frequencies(const std::vector<float>& periods, const std::vector<double>& factors) {
    std::vector<float> frequencies;
    for (std::size_t i = 0; i < periods.size(); ++i)
        frequencies.push_back(1.0F / (static_cast<float>(factors.at(i)) * periods[i]));
    return frequencies;
}

}  // namespace

RopeTable::RopeTable(const ModelConfig& config, const RopeConfig& given) {
    RopeConfig rope = given;
    const std::int64_t head_dim = rope.head_dim > 0 ? rope.head_dim : config.head_dim;
    num_pairs_ = head_dim / 2;
    if (rope.original_max_positions == 0) rope.original_max_positions = config.max_positions;
    query_growth_ = rope.query_growth;
    score_scale_ = rope.score_scale;
    query_period_ = rope.original_max_positions;
    const std::int64_t dims = rope.rotated_dims(head_dim);
    const YarnRamp ramp(rope, dims);
    const std::vector<float> all = periods(rope, dims);
    if (rope.scaling == RopeScaling::longrope) {
        inverse_frequencies_ = divided_frequencies(all, rope.short_factors);
        long_frequencies_ = divided_frequencies(all, rope.long_factors);
        longest_short_ = rope.original_max_positions;
        attention_factor_ = static_cast<float>(longrope_attention_factor(rope));
        return;
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
        const float frequency = 1.0F / all[i];
        switch (rope.scaling) {
            case RopeScaling::linear:
                inverse_frequencies_.push_back(frequency / static_cast<float>(rope.factor));
                break;
            case RopeScaling::llama3:
                inverse_frequencies_.push_back(llama3_frequency(frequency, rope));
                break;
            case RopeScaling::proportional:
                inverse_frequencies_.push_back(static_cast<std::int64_t>(2 * i) < rope.rotary_dims
                                                   ? frequency / static_cast<float>(rope.factor)
                                                   : 0.0F);
                break;
            case RopeScaling::none:
                inverse_frequencies_.push_back(0.0F);  // cos = 1 and sin = 0 everywhere
                break;
            case RopeScaling::yarn:
                inverse_frequencies_.push_back(yarn_frequency(all[i], ramp.stretched(i), rope));
                break;
            case RopeScaling::standard:
            case RopeScaling::longrope:
                inverse_frequencies_.push_back(frequency);
                break;
        }
    }
    if (rope.scaling == RopeScaling::yarn) attention_factor_ = static_cast<float>(yarn_attention_factor(rope));
}

float RopeTable::query_factor(std::int64_t position) const {
    if (query_growth_ == 0.0 || position < query_period_) return static_cast<float>(score_scale_);
    const std::int64_t periods = position / query_period_;
    return static_cast<float>(score_scale_ *
                              (1.0 + query_growth_ * scalar::det_log(1.0 + static_cast<double>(periods))));
}

void RopeTable::fill(std::int64_t position, std::int64_t text_length, float* cos, float* sin) const {
    const std::vector<float>& frequencies = is_long(text_length) ? long_frequencies_ : inverse_frequencies_;
    const auto at = static_cast<float>(position);
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
        const float angle = at * frequencies[i];
        const scalar::SinCos value = scalar::det_sincos(angle);
        cos[i] = static_cast<float>(value.cos) * attention_factor_;
        sin[i] = static_cast<float>(value.sin) * attention_factor_;
    }
    for (std::int64_t i = std::ssize(frequencies); i < num_pairs_; ++i) {
        cos[i] = 1.0F;
        sin[i] = 0.0F;
    }
}

void RememberedAngles::fill(std::int64_t position, std::int64_t text_length, float* cos, float* sin) {
    std::vector<float>& known = table_.is_long(text_length) ? long_ : short_;
    const std::int64_t pairs = table_.num_pairs(), count = num_remembered(text_length);
    if (position < count) {
        const float* const from = known.data() + position * 2 * pairs;
        std::copy_n(from, pairs, cos);
        std::copy_n(from + pairs, pairs, sin);
        return;
    }
    table_.fill(position, text_length, cos, sin);
    if (position > count || count == max_positions_) return;
    known.insert(known.end(), cos, cos + pairs);
    known.insert(known.end(), sin, sin + pairs);
}

}  // namespace longhaul::engine
