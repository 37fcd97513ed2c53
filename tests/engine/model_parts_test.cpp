// The parts of a model used separately, taps, and rows whose text position differs from their slot. All are compared
// bit for bit with whole passes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <list>
#include <string>
#include <vector>

#include "engine/model/compute_context.hpp"
#include "engine/model/decoder_layers.hpp"
#include "engine/model/model_plan.hpp"
#include "engine/model/split.hpp"
#include "engine/model/tensor_names.hpp"
#include "engine/model/tensor_source.hpp"
#include "engine/model/weight_loading.hpp"
#include "engine/model/weight_plan.hpp"
#include "kernels/numerics.hpp"
#include "tests/engine/model_harness.hpp"

namespace longhaul::engine {
namespace {

using testing::logits_of;
using testing::on_each_rank;
using testing::wanted;

using Floats = std::vector<float>;

const std::filesystem::path parity = LONGHAUL_TEST_DATA "/parity";
constexpr std::int64_t text_size = 20;

std::unique_ptr<kernels::Device> best_device() {
    return kernels::make_cpu_device(kernels::available_cpu_variants().back(), 1);
}

Floats host_of(Model& model, const HiddenStates& states) {
    Floats values(static_cast<std::size_t>(states.num_rows() * states.width()));
    model.device().download(values.data(), reinterpret_cast<const std::byte*>(states.data()),
                            values.size() * sizeof(float));
    return values;
}

Floats host_of(Logits logits) {
    const std::span<const float> rows = logits.all();
    return {rows.begin(), rows.end()};
}

double greatest_difference(const Floats& a, const Floats& b) {
    EXPECT_EQ(a.size(), b.size());
    double greatest = 0;
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
        greatest = std::max(greatest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
    return greatest;
}

/// Pages of one sequence for 2 * `text_size` positions, and `text_size` scratch slots.
struct OwnPages {
    explicit OwnPages(Model& model) : OwnPages(model, model.kv_layout()) {}
    OwnPages(Model& model, const kernels::KvLayout& layout) : pool(model.device(), layout, testing::plenty), kv(pool) {
        EXPECT_TRUE(kv.reserve(2 * text_size) && kv.reserve_scratch(text_size));
        view = kv.view();
    }
    [[nodiscard]] std::span<const KvView> views() const { return {&view, 1}; }

    PagePool pool;
    KvSequence kv;
    KvView view;
};

/// A text with logits at every third position and at its end.
std::vector<ForwardRow> text(std::int64_t size = text_size) {
    std::vector<ForwardRow> rows;
    for (std::int64_t p = 0; p < size; ++p) {
        rows.push_back(text_row(static_cast<std::int32_t>(1 + p * p % 60), p));
        rows.back().wants_logits = p % 3 == 0 || p + 1 == size;
    }
    return rows;
}

std::vector<std::int32_t> rows_with_logits(const std::vector<ForwardRow>& rows) {
    std::vector<std::int32_t> result;
    for (std::size_t r = 0; r < rows.size(); ++r) {
        if (rows[r].wants_logits) result.push_back(static_cast<std::int32_t>(r));
    }
    return result;
}

std::vector<std::int32_t> all_of(const std::vector<ForwardRow>& rows) {
    std::vector<std::int32_t> result(rows.size());
    for (std::size_t r = 0; r < rows.size(); ++r) result[r] = static_cast<std::int32_t>(r);
    return result;
}

Floats forward_alone(Model& model, const std::vector<ForwardRow>& rows, const HiddenStates* states = nullptr) {
    const OwnPages pages(model);
    return host_of(model.forward({.rows = rows, .sequences = pages.views(), .states = states}).logits);
}

/// Models with RMS norms and layer norms, before and after the blocks, projected embeddings and learned positions.
class ModelParts : public ::testing::TestWithParam<std::tuple<const char*, int>> {
  protected:
    void on_ranks(Precision precision, const std::function<void(Model&)>& action) const {
        const auto [folder, ranks] = GetParam();
        on_each_rank(parity / folder, precision, best_device, ranks, [&](Model& model, int) { action(model); });
    }
    void on_ranks(const std::function<void(Model&)>& action) const { on_ranks(Precision::bf16, action); }
};
INSTANTIATE_TEST_SUITE_P(Models, ModelParts,
                         ::testing::Combine(::testing::Values("llama-default-bf16", "llama-modern", "qwen2", "opt-bf16",
                                                              "opt-post-norm-bf16"),
                                            ::testing::Values(1, 2)),
                         [](const auto& info) {
                             std::string name = std::get<0>(info.param);
                             std::replace(name.begin(), name.end(), '-', '_');
                             return name + "_on_" + std::to_string(std::get<1>(info.param));
                         });

TEST_P(ModelParts, TheHeadOverTapsGivesTheLogitsOfThePass) {
    on_ranks([&](Model& model) {
        const std::vector<ForwardRow> rows = text();
        const std::vector<std::int32_t> last = rows_with_logits(rows);
        const std::vector<Tap> taps{{.at = Tap::At::last_hidden, .rows = last},
                                    {.at = Tap::At::normed_hidden, .rows = last},
                                    {.at = Tap::At::last_hidden, .rows = {last[2], last[0], last[2]}},
                                    {.at = Tap::At::last_hidden, .rows = {}}};
        const OwnPages pages(model);
        PassResult result = model.forward({.rows = rows, .sequences = pages.views(), .taps = taps});
        const Floats expected = host_of(std::move(result.logits));
        ASSERT_EQ(result.taps.size(), taps.size());
        EXPECT_EQ(host_of(model.logits(result.taps[0])), expected);
        const Norm none;
        EXPECT_EQ(host_of(model.logits(result.taps[1], &none)), expected);
        EXPECT_NE(host_of(model.logits(result.taps[0], &none)) == expected, model.config().has_final_norm());

        const Floats some = host_of(model.logits(result.taps[2]));
        const auto vocab = static_cast<std::size_t>(model.config().vocab_size);
        ASSERT_EQ(some.size(), 3 * vocab);
        for (const auto& [from, to] : {std::pair(2, 0), std::pair(0, 1), std::pair(2, 2)})
            EXPECT_EQ(std::memcmp(some.data() + to * vocab, expected.data() + from * vocab, vocab * sizeof(float)), 0);
        EXPECT_EQ(result.taps[3].num_rows(), 0);
        EXPECT_EQ(model.logits(result.taps[3]).num_rows(), 0);
    });
}

// The caller's norm replaces the model's final one.
TEST_P(ModelParts, TheHeadTakesAnotherNorm) {
    on_ranks([&](Model& model) {
        const std::vector<ForwardRow> rows = text();
        const std::vector<Tap> taps{{.at = Tap::At::last_hidden, .rows = rows_with_logits(rows)}};
        const OwnPages pages(model);
        const PassResult result = model.forward({.rows = rows, .sequences = pages.views(), .taps = taps});
        const HiddenStates& tapped = result.taps[0];
        const std::int64_t width = tapped.width();
        Floats gains(static_cast<std::size_t>(width));
        for (std::size_t i = 0; i < gains.size(); ++i) gains[i] = 0.5F + 0.25F * static_cast<float>(i % 5);
        Norm norm{.gain = kernels::Buffer(model.device(), gains.size() * sizeof(float)), .bias = {}, .eps = 1e-5F};
        model.device().upload(norm.gain.data(), gains.data(), gains.size() * sizeof(float));

        HiddenStates normed = model.hidden_states(tapped.num_rows());
        model.device().rms_norm(tapped.data(), norm.gain.as<float>(), norm.eps, tapped.num_rows(), width,
                                kernels::DType::f32, reinterpret_cast<std::byte*>(normed.data()), width);
        const Norm none;
        EXPECT_EQ(host_of(model.logits(tapped, &norm)), host_of(model.logits(normed, &none)));
    });
}

/// Layer `layer` of a model, with its own copy of the weights.
struct LayerAlone {
    LayerAlone(Model& model, const std::filesystem::path& folder, std::int64_t layer)
        : tensors(SafetensorsFolder::open(folder)),
          split(model.config(), model.group().rank(), model.group().size()),
          layout(model.kv_layout()),
          layers(model.context(), model.config(), split, weights, {&one_layer(layout), 1}) {
        FolderSource source(tensors);
        load_weights(plan_layers(model.config(), split, weight_types(model.precision()), tensor_names(model.config()),
                                 layer, weights),
                     model.device(), source);
    }
    static const kernels::KvLayout& one_layer(kernels::KvLayout& layout) {
        layout.num_layers = 1;
        return layout;
    }

    SafetensorsFolder tensors;
    std::vector<LayerWeights> weights = std::vector<LayerWeights>(1);
    Split split;
    kernels::KvLayout layout;
    DecoderLayers layers;
};

TEST_P(ModelParts, ALayerAloneIsThatLayerOfTheModel) {
    on_ranks([&](Model& model) {
        const std::vector<ForwardRow> rows = text();
        std::vector<Tap> taps;
        for (std::int64_t layer = 0; layer < model.config().num_layers; ++layer)
            taps.push_back({.at = Tap::At::layer_input, .layer = layer, .rows = all_of(rows)});
        taps.push_back({.at = Tap::At::last_hidden, .rows = all_of(rows)});
        const OwnPages pages(model);
        const PassResult result = model.forward({.rows = rows, .sequences = pages.views(), .taps = taps});

        EXPECT_EQ(host_of(model, model.embed(rows)), host_of(model, result.taps[0]));
        for (std::int64_t layer = 0; layer < model.config().num_layers; ++layer) {
            const auto k = static_cast<std::size_t>(layer);
            LayerAlone alone(model, parity / std::get<0>(GetParam()), layer);
            const OwnPages own(model, alone.layout);
            const HiddenStates x = model.hidden_states(text_size);
            model.device().gather(result.taps[k].data(), all_of(rows), x.width(), x.data());
            alone.layers.begin(rows, own.views());
            alone.layers.run(0, 1, x.data());
            EXPECT_EQ(host_of(model, x), host_of(model, result.taps[k + 1])) << "layer " << layer;
        }
    });
}

TEST_P(ModelParts, ARowEntersAsAHiddenStateOrAsItsToken) {
    on_ranks([&](Model& model) {
        const std::vector<ForwardRow> rows = text();
        const HiddenStates states = model.embed(rows);
        const HiddenStates zeros = model.hidden_states(text_size);
        const Floats expected = forward_alone(model, rows);
        for (const std::size_t every : {1U, 2U, 7U}) {
            std::vector<ForwardRow> mixed = rows;
            for (std::size_t r = 0; r < mixed.size(); r += every) {
                mixed[r].token_id = 0;
                mixed[r].state = static_cast<std::int32_t>(r);
            }
            EXPECT_EQ(forward_alone(model, mixed, &states), expected) << "every " << every;
            EXPECT_NE(forward_alone(model, mixed, &zeros), expected) << "other states";
        }
        std::vector<ForwardRow> wrong = rows;
        wrong.back().state = text_size;
        EXPECT_THROW(forward_alone(model, wrong, &states), std::logic_error);
        EXPECT_THROW(forward_alone(model, wrong), std::logic_error);
    });
}

// Positions 0..9 and 25..34 of a text in slots 0..19. Rows in pages give the same logits as the chain in scratch slots.
TEST_P(ModelParts, PositionsHaveGapsWhereSlotsHaveNone) {
    on_ranks([&](Model& model) {
        std::vector<ForwardRow> paged = text(), tree = text();
        std::vector<std::int32_t> slots;
        for (std::size_t r = 10; r < paged.size(); ++r) {
            slots.push_back(static_cast<std::int32_t>((r * 7) % 20));
            paged[r].position += 15;
            tree[r] = tree_row(tree[r].token_id, 9, slots);
            tree[r].wants_logits = paged[r].wants_logits;
            tree[r].position = paged[r].position;
        }
        const Floats with_gap = forward_alone(model, paged);
        EXPECT_EQ(forward_alone(model, tree), with_gap);
        EXPECT_GT(greatest_difference(forward_alone(model, text()), with_gap), 1e-3);

        // The same in two passes; the second reads what the first stored.
        const OwnPages pages(model);
        const std::vector<ForwardRow> first(paged.begin(), paged.begin() + 13), second(paged.begin() + 13, paged.end());
        Floats parts = logits_of(model, first, pages.kv);
        const Floats rest = logits_of(model, second, pages.kv);
        parts.insert(parts.end(), rest.begin(), rest.end());
        EXPECT_EQ(parts, with_gap);
    });
}

// Attention depends only on differences of rotations: shifting all positions by the same amount changes only rounding.
TEST(Positions, RotateBesideTheirSlots) {
    on_each_rank(parity / "llama-default", Precision::fp32, best_device, 1, [&](Model& model, int) {
        std::vector<ForwardRow> moved = text();
        for (ForwardRow& row : moved) row.position += 50;
        const Floats expected = forward_alone(model, text());
        EXPECT_LT(greatest_difference(forward_alone(model, moved), expected), 1e-4);
        for (std::size_t r = 10; r < moved.size(); ++r) moved[r].position += 1;
        EXPECT_GT(greatest_difference(forward_alone(model, moved), expected), 1e-3);
    });
}

// If positions are learned, `position` selects the embedding that is added.
TEST(Positions, AreLearnedBesideTheirSlots) {
    on_each_rank(parity / "opt-bf16", Precision::bf16, best_device, 1, [&](Model& model, int) {
        std::vector<ForwardRow> moved = text(), entered = text();
        for (ForwardRow& row : moved) row.position += 5;
        const HiddenStates states = model.embed(moved);
        for (std::size_t r = 0; r < entered.size(); ++r) entered[r].state = static_cast<std::int32_t>(r);
        EXPECT_EQ(forward_alone(model, moved), forward_alone(model, entered, &states));
        EXPECT_NE(forward_alone(model, moved), forward_alone(model, text()));
    });
}

TEST_P(ModelParts, ARowThatIsStoredNowhereLeavesNothing) {
    on_ranks([&](Model& model) {
        const std::vector<ForwardRow> rows = text();
        const OwnPages pages(model);
        std::vector<ForwardRow> probed(rows.begin(), rows.begin() + 12);
        ForwardRow probe = wanted(text_row(7, 12));
        probe.in_pages = 12;
        probe.place = {};
        probed.push_back(probe);
        const Floats of_probe = logits_of(model, probed, pages.kv);
        const std::vector<ForwardRow> rest(rows.begin() + 12, rows.end());
        const Floats after = logits_of(model, rest, pages.kv);
        const Floats expected = forward_alone(model, rows);
        EXPECT_TRUE(std::equal(after.rbegin(), after.rend(), expected.rbegin()));

        // The probe did read the pages: after another text it gives other logits.
        const OwnPages others(model);
        probed[3].token_id += 1;
        const Floats other = logits_of(model, probed, others.kv);
        const std::int64_t vocab = model.config().vocab_size;
        EXPECT_FALSE(std::equal(of_probe.end() - vocab, of_probe.end(), other.end() - vocab));
    });
}

TEST_P(ModelParts, ResultsStayAsTheyAreWhileTheyLive) {
    on_ranks([&](Model& model) {
        const std::vector<ForwardRow> rows = text();
        const std::vector<ForwardRow> short_text(rows.begin(), rows.begin() + 7);
        const std::vector<Tap> taps{{.at = Tap::At::layer_input, .layer = 1, .rows = {6, 2}}};
        const auto run = [&](const std::vector<ForwardRow>& of) {
            const OwnPages pages(model);
            return model.forward({.rows = of, .sequences = pages.views(), .taps = taps});
        };
        PassResult first = run(rows);
        const std::span<const float> span = first.logits.all();
        const Floats logits(span.begin(), span.end()), tapped = host_of(model, first.taps[0]);
        {
            PassResult second = run(short_text);
            PassResult third = run(rows);
            EXPECT_NE(second.logits.all().data(), span.data());
            EXPECT_TRUE(std::equal(span.begin(), span.end(), logits.begin(), logits.end()));
            EXPECT_EQ(host_of(model, first.taps[0]), tapped);
            const std::span<const float> again = third.logits.all();
            EXPECT_EQ(Floats(again.begin(), again.end()), logits);
        }
        // If only one result is alive at a time, it reuses the same memory.
        first = run(rows);
        const float* const place = run(rows).taps[0].data();
        for (int i = 0; i < 3; ++i) EXPECT_EQ(run(rows).taps[0].data(), place);
    });
}

TEST(Taps, NameRowsAndLayersThatAreThere) {
    on_each_rank(parity / "llama-default", Precision::fp32, best_device, 1, [&](Model& model, int) {
        const std::vector<ForwardRow> rows = text(4);
        const OwnPages pages(model);
        const auto run = [&](const Tap& tap) {
            return model.forward({.rows = rows, .sequences = pages.views(), .taps = std::span(&tap, 1)});
        };
        const std::int64_t layers = model.config().num_layers;
        EXPECT_NO_THROW(run({.at = Tap::At::layer_input, .layer = layers - 1, .rows = {3}}));
        EXPECT_THROW(run({.at = Tap::At::layer_input, .layer = layers, .rows = {0}}), std::logic_error);
        EXPECT_THROW(run({.at = Tap::At::last_hidden, .rows = {4}}), std::logic_error);
        EXPECT_THROW(run({.at = Tap::At::last_hidden, .rows = {-1}}), std::logic_error);
    });
}

/// Tensors of a folder. Attention matrices requested with twice the columns get zeros in the second half.
class Widened final : public TensorSource {
  public:
    explicit Widened(const SafetensorsFolder& folder, std::int64_t width) : folder_(folder), width_(width) {}
    kernels::WeightRows matrix(const TensorPart& part) override {
        if (part.columns != 2 * width_ || part.tensor.find("self_attn") == std::string::npos)
            return source_.matrix(part);
        const TensorView& view = folder_.require(part.tensor, {part.rows, width_});
        Floats& wide = held_.emplace_back(static_cast<std::size_t>(part.rows * 2 * width_), 0.0F);
        for (std::int64_t r = 0; r < part.rows; ++r)
            std::memcpy(wide.data() + r * 2 * width_, view.data + r * width_ * 4, static_cast<std::size_t>(width_) * 4);
        return {.data = reinterpret_cast<const std::byte*>(wide.data()),
                .dtype = kernels::DType::f32,
                .num_rows = part.rows,
                .row_stride = 2 * width_,
                .num_columns = 2 * width_};
    }
    Floats vector(const TensorPart& part) override { return source_.vector(part); }

  private:
    const SafetensorsFolder& folder_;
    std::int64_t width_;
    FolderSource source_{folder_};
    std::list<Floats> held_;
};

// A draft layer whose attention reads a wider input than its own rows. With zero weights for the extra columns it
// equals the plain layer.
TEST(DecoderLayers, TakeAnInputOfAnotherWidth) {
    const std::filesystem::path folder = parity / "llama-default";
    on_each_rank(folder, Precision::fp32, best_device, 1, [&](Model& model, int) {
        const std::int64_t hidden = model.config().hidden_size;
        const std::vector<ForwardRow> rows = text();
        const HiddenStates x = model.embed(rows);
        LayerAlone layer(model, folder, 0);
        std::vector<LayerWeights> weights(1);
        Widened source(layer.tensors, hidden);
        load_weights(plan_layers(model.config(), layer.split, {kernels::DType::f32, kernels::DType::f32},
                                 tensor_names(model.config()), 0, weights, 2 * hidden),
                     model.device(), source);
        ASSERT_EQ(weights[0].qkv.num_inputs, kernels::padded_inputs(2 * hidden));

        HiddenStates normed = model.hidden_states(text_size);
        apply_norm(model.device(), weights[0].attention_norm, x.data(), text_size, hidden, kernels::DType::f32,
                   reinterpret_cast<std::byte*>(normed.data()), hidden);
        Floats wide(static_cast<std::size_t>(text_size * 2 * hidden), 3.0F);
        const Floats narrow = host_of(model, normed);
        for (std::int64_t r = 0; r < text_size; ++r)
            std::copy_n(narrow.data() + r * hidden, hidden, wide.data() + r * 2 * hidden);
        kernels::Buffer input(model.device(), wide.size() * sizeof(float));
        model.device().upload(input.data(), wide.data(), wide.size() * sizeof(float));

        const OwnPages own(model, layer.layout), others(model, layer.layout);
        const HiddenStates y = model.embed(rows);
        layer.layers.begin(rows, own.views());
        layer.layers.run(0, 1, x.data());
        DecoderLayers widened(model.context(), model.config(), layer.split, weights, {&layer.layout, 1});
        widened.begin(rows, others.views());
        widened.run(0, 1, y.data(), {.input = {.rows = input.as<float>(), .width = 2 * hidden}});
        EXPECT_LT(greatest_difference(host_of(model, x), host_of(model, y)), 1e-5);
        EXPECT_GT(greatest_difference(host_of(model, x), host_of(model, model.embed(rows))), 1e-3);
    });
}

}  // namespace
}  // namespace longhaul::engine
