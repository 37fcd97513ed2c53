// Linear attention: the text in any passes, and draft nodes in any order, give the bits of the reference that reads the
// text row by row.
#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "kernels/delta_shape.hpp"
#include "kernels/linear_attention.hpp"
#include "tests/kernels/kernels_testing.hpp"

namespace longhaul::kernels::testing {
namespace {

constexpr std::int64_t num_layers = 2, num_tokens = 48;

const std::vector<DeltaShape> shapes = {
    {.num_key_heads = 2, .values_per_key = 1, .key_dim = 32, .value_dim = 48, .taps = 4},
    {.num_key_heads = 1, .values_per_key = 2, .key_dim = 48, .value_dim = 32, .taps = 2},
    {.num_key_heads = 2, .values_per_key = 3, .key_dim = 16, .value_dim = 16, .taps = 4},
    {.num_key_heads = 1, .values_per_key = 2, .key_dim = 128, .value_dim = 128, .taps = 4},
    {.num_key_heads = 2, .values_per_key = 3, .key_dim = 32, .value_dim = 48, .taps = 4, .rule = StateRule::sum},
    {.num_key_heads = 1, .values_per_key = 2, .key_dim = 128, .value_dim = 64, .taps = 4, .rule = StateRule::sum},
};

std::ostream& operator<<(std::ostream& os, const DeltaShape& shape) {
    return os << shape.num_key_heads << " x " << shape.values_per_key << " heads, " << shape.key_dim << " to "
              << shape.value_dim << ", " << shape.taps << " taps, " << (shape.rule == StateRule::sum ? "sum" : "delta");
}

/// A row of a pass. Without a path it is text.
struct Row {
    std::size_t sequence = 0;
    std::int32_t token = 0;
    std::int64_t position = 0;
    std::vector<std::int32_t> path{};
};

using Tokens = std::vector<std::int32_t>;
using Bytes = std::vector<std::byte>;

std::vector<Row> text_of(const Tokens& tokens, std::int64_t first = 0, std::size_t sequence = 0) {
    std::vector<Row> rows;
    for (const std::int32_t token : tokens) rows.push_back({sequence, token, first++});
    return rows;
}

/// Layers and two sequences on one device. What a row of a layer reads depends on its token alone.
class World {
  public:
    static constexpr std::size_t num_sequences = 2, num_scratch_pages = 2;

    World(Device& device, const DeltaShape& shape) : device_(device), layout_(layout_of(shape)) {
        Numbers numbers(81);
        const std::int64_t heads = shape.num_value_heads(), channels = shape.num_key_heads * shape.channels();
        stride_ = channels + 16;  // of a gate
        for (std::int64_t l = 0; l < num_layers; ++l) {
            inputs_.push_back(numbers.normals(num_tokens * stride_));
            gates_.push_back(numbers.normals(num_tokens * shape.gates_width(), 2.0F));
            filters_.emplace_back(device, numbers.normals(shape.taps * channels));
            rates_.emplace_back(device, numbers.normals(heads));
            biases_.emplace_back(device, numbers.normals(heads));
            if (shape.rule != StateRule::sum) continue;
            filter_biases_.emplace_back(device, numbers.normals(channels));
            skips_.emplace_back(device, numbers.normals(heads));
        }
        gates_[0][0] = 30.0F;  // where softplus(x) is x
        for (std::size_t s = 0; s < num_sequences; ++s) {
            for (std::size_t p = 0; p < 1 + num_scratch_pages; ++p) buffers_.emplace_back(device, page_bytes());
            for (std::size_t p = buffers_.size() - num_scratch_pages; p < buffers_.size(); ++p)
                scratch_[s].push_back(buffers_[p].data());
            pages_[s] = buffers_[s * (1 + num_scratch_pages)].data();
        }
    }

    /// Fills the page of a sequence with ones.
    void soil(std::size_t sequence) {
        const std::vector<float> ones(page_bytes() / sizeof(float), 1.0F);
        device_.upload(pages_[sequence], ones.data(), page_bytes());
    }

    /// The outputs of each row, of all layers.
    std::vector<Bytes> run(const std::vector<Row>& rows) {
        std::vector<AttentionSequence> sequences;
        for (std::size_t s = 0; s < num_sequences; ++s)
            sequences.push_back({std::span<std::byte* const>(&pages_[s], 1), scratch_[s]});
        std::vector<AttentionRow> attention_rows;
        std::vector<KvSlot> slots;
        for (const Row& row : rows) {
            attention_rows.push_back({.sequence = static_cast<std::int32_t>(row.sequence),
                                      .position = row.position,
                                      .in_pages = row.position + 1 - std::ssize(row.path),
                                      .path = row.path.data()});
            slots.push_back(row.path.empty() ? KvSlot{pages_[row.sequence], static_cast<std::int32_t>(row.position)}
                                             : slot_of(row.sequence, row.path.back()));
        }
        device_.begin_pass({.sequences = sequences, .rows = attention_rows, .slots = slots});
        std::vector<Bytes> outputs(rows.size());
        for (std::int64_t layer = 0; layer < num_layers; ++layer) run_layer(layer, rows, outputs);
        return outputs;
    }

    void accept(std::size_t sequence, const std::vector<std::int32_t>& slots) {
        device_.delta_rule()->accept(layout_, pages_[sequence], scratch_[sequence], slots);
    }

    /// What is kept of a sequence: without what its page has beyond.
    [[nodiscard]] Bytes state(std::size_t sequence = 0) const {
        const DeltaShape& shape = layout_.delta;
        Bytes bytes(static_cast<std::size_t>(num_layers * shape.num_key_heads * shape.head_floats()) * sizeof(float));
        device_.download(bytes.data(), pages_[sequence], bytes.size());
        return bytes;
    }

  private:
    static KvLayout layout_of(const DeltaShape& shape) {
        KvLayout layout{.num_layers = num_layers};
        layout.delta = shape;
        return layout;
    }
    [[nodiscard]] std::size_t page_bytes() const { return layout_.delta.page_bytes(num_layers, KvLayout::page_tokens); }
    [[nodiscard]] KvSlot slot_of(std::size_t sequence, std::int32_t number) const {
        return {scratch_[sequence][static_cast<std::size_t>(number / 64)], number % 64};
    }
    template <class Values>
    static void append(Values& to, const Values& from, std::int64_t first, std::int64_t count) {
        to.insert(to.end(), from.begin() + first, from.begin() + first + count);
    }

    void run_layer(std::int64_t layer, const std::vector<Row>& rows, std::vector<Bytes>& outputs) {
        const auto l = static_cast<std::size_t>(layer);
        const std::int64_t heads = layout_.delta.num_value_heads(), width = layout_.delta.gates_width();
        std::vector<float> inputs, gates;
        for (const Row& row : rows) {
            append(inputs, inputs_[l], row.token * stride_, stride_);
            append(gates, gates_[l], row.token * width, width);
        }
        const OnDevice there(device_, inputs), gates_there(device_, gates);
        const auto row_bytes = static_cast<std::size_t>(heads * layout_.delta.value_dim) * sizeof(float);
        Guarded out(device_, rows.size() * row_bytes);
        device_.delta_rule()->mix(layout_, layer,
                                  {.filter = filters_[l].floats(),
                                   .log_rate = rates_[l].floats(),
                                   .step_bias = biases_[l].floats(),
                                   .filter_bias = filter_biases_.empty() ? nullptr : filter_biases_[l].floats(),
                                   .skip = skips_.empty() ? nullptr : skips_[l].floats()},
                                  there.floats(), stride_, gates_there.floats(), out.floats());
        EXPECT_TRUE(out.intact());
        const Bytes bytes = out.bytes();
        for (std::size_t r = 0; r < rows.size(); ++r)
            append(outputs[r], bytes, static_cast<std::int64_t>(r * row_bytes), static_cast<std::int64_t>(row_bytes));
    }

    Device& device_;
    KvLayout layout_;
    std::int64_t stride_ = 0;
    std::vector<std::vector<float>> inputs_, gates_;  ///< by layer, [tokens, …]
    std::vector<OnDevice> filters_, rates_, biases_;
    std::vector<OnDevice> filter_biases_, skips_;  ///< with StateRule::sum
    std::vector<Buffer> buffers_;
    std::byte* pages_[num_sequences] = {};
    std::vector<std::byte*> scratch_[num_sequences];
};

/// A text computed row by row.
struct Right {
    Right(Device& reference, const DeltaShape& shape, const Tokens& tokens) {
        World world(reference, shape);
        for (const Row& row : text_of(tokens)) outputs.push_back(world.run({row}).front());
        state = world.state();
    }
    std::vector<Bytes> outputs;
    Bytes state;
};

class DeltaRuleTest : public DeviceTest {
  protected:
    /// Calls check(shape) for each shape.
    template <class Check>
    void for_each_shape(Check check) {
        for (const DeltaShape& shape : shapes) {
            std::ostringstream text;
            text << shape;
            SCOPED_TRACE(text.str());
            check(shape);
            if (HasFatalFailure()) return;
        }
    }
    void expect_equal(const Bytes& expected, const Bytes& actual, const char* what) {
        EXPECT_TRUE(comparison_.equal(expected, actual, DType::f32)) << what;
    }

    Comparison comparison_{GetParam()};
};

const Tokens some_text = {5, 3, 3, 40, 7, 1, 22, 0, 9, 31, 2};

TEST_P(DeltaRuleTest, TheTextIsTheSameInEveryPasses) {
    for_each_shape([&](const DeltaShape& shape) {
        const Right right(*reference_, shape, some_text);
        const std::vector<Row> rows = text_of(some_text);
        for (const std::vector<std::ptrdiff_t>& chunks :
             {std::vector<std::ptrdiff_t>{11}, {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, {1, 2, 3, 5}, {4, 7}}) {
            World world(*device_, shape);
            world.soil(0);  // position 0 clears it
            auto begin = rows.begin();
            for (const std::ptrdiff_t chunk : chunks) {
                const std::vector<Bytes> outputs = world.run({begin, begin + chunk});
                for (const Bytes& output : outputs)
                    expect_equal(right.outputs[static_cast<std::size_t>(begin++ - rows.begin())], output, "text");
            }
            expect_equal(right.state, world.state(), "state");
        }
    });
}

/// Nodes behind a text of five tokens, with the slots of their paths.
struct Nodes {
    static constexpr std::int64_t text_size = 5;
    static constexpr std::array<int, 11> parents = {-1, -1, 0, 0, 1, 2, 5, 6, 4, 2, -1};
    static constexpr std::array<std::int32_t, 11> tokens = {1, 22, 22, 8, 9, 0, 9, 30, 31, 5, 2};
    static constexpr std::array<std::int32_t, 11> slots = {70, 3, 0, 127, 64, 9, 1, 63, 5, 2, 90};
    static constexpr std::array<std::size_t, 11> shuffled = {7, 4, 0, 9, 10, 1, 6, 3, 8, 2, 5};
    static constexpr std::size_t deepest = 7;

    [[nodiscard]] static std::vector<std::int32_t> path(std::size_t node, std::span<const std::int32_t> of) {
        std::vector<std::int32_t> path;
        for (int n = static_cast<int>(node); n >= 0; n = parents[static_cast<std::size_t>(n)])
            path.insert(path.begin(), of[static_cast<std::size_t>(n)]);
        return path;
    }
    [[nodiscard]] static Row row(std::size_t node, std::size_t sequence = 0) {
        Row row{sequence, tokens[node], 0, path(node, slots)};
        row.position = text_size + std::ssize(row.path) - 1;
        return row;
    }
    [[nodiscard]] static Tokens text() { return {some_text.begin(), some_text.begin() + text_size}; }
    [[nodiscard]] static Tokens text_to(std::size_t node) {
        Tokens all = text();
        const Tokens more = path(node, tokens);
        all.insert(all.end(), more.begin(), more.end());
        return all;
    }
};

TEST_P(DeltaRuleTest, NodesAreTheirPathsAsText) {
    for_each_shape([&](const DeltaShape& shape) {
        std::vector<Bytes> right;
        for (std::size_t n = 0; n < Nodes::tokens.size(); ++n)
            right.push_back(Right(*reference_, shape, Nodes::text_to(n)).outputs.back());
        const Right text(*reference_, shape, Nodes::text());
        Tokens longer = Nodes::text_to(Nodes::deepest);
        longer.insert(longer.end(), {17, 4});
        const Right accepted(*reference_, shape, longer);

        const auto shallow = [](std::size_t node) { return Nodes::row(node).path.size() <= 2; };
        const auto all = [](std::size_t /*node*/) { return true; };
        const auto deep = [&](std::size_t node) { return !shallow(node); };
        const auto rows_of = [&](const auto& which) {
            std::vector<std::size_t> nodes;
            std::copy_if(Nodes::shuffled.begin(), Nodes::shuffled.end(), std::back_inserter(nodes), which);
            return nodes;
        };
        const auto run_nodes = [&](World& world, const std::vector<std::size_t>& nodes, std::vector<Row> rows) {
            const std::size_t before = rows.size();
            for (const std::size_t node : nodes) rows.push_back(Nodes::row(node));
            const std::vector<Bytes> outputs = world.run(rows);
            for (std::size_t i = 0; i < nodes.size(); ++i) expect_equal(right[nodes[i]], outputs[before + i], "node");
            expect_equal(text.state, world.state(), "state behind the text");
        };
        for (const bool with_text : {true, false}) {
            for (const bool at_once : {true, false}) {
                World world(*device_, shape);
                std::vector<Row> rows = text_of(Nodes::text());
                if (!with_text) world.run(std::exchange(rows, {}));
                if (at_once) {
                    run_nodes(world, rows_of(all), rows);
                } else {
                    run_nodes(world, rows_of(shallow), rows);
                    run_nodes(world, rows_of(deep), {});
                }
                const std::vector<std::int32_t> path = Nodes::row(Nodes::deepest).path;
                world.accept(0, {path.begin(), path.begin() + 1});
                world.accept(0, {});
                world.accept(0, {path.begin() + 1, path.end()});
                const std::vector<Bytes> outputs = world.run(text_of({17, 4}, std::ssize(longer) - 2));
                expect_equal(accepted.outputs.back(), outputs.back(), "behind what was accepted");
                expect_equal(accepted.state, world.state(), "state");
            }
        }
    });
}

/// More nodes than one call of a device may take.
TEST_P(DeltaRuleTest, ManyNodesAreAccepted) {
    const DeltaShape& shape = shapes.front();
    constexpr std::int32_t depth = 40;
    Tokens tokens{11};
    std::vector<std::int32_t> path;
    std::vector<Row> rows = text_of(tokens);
    for (std::int32_t d = 0; d < depth; ++d) {
        path.push_back(100 - d);
        tokens.push_back(d);
        rows.push_back({0, d, d + 1, path});
    }
    const Right right(*reference_, shape, tokens);
    World world(*device_, shape);
    const std::vector<Bytes> outputs = world.run(rows);
    for (std::size_t r = 0; r < rows.size(); ++r) expect_equal(right.outputs[r], outputs[r], "node");
    world.accept(0, path);
    expect_equal(right.state, world.state(), "state");
}

TEST_P(DeltaRuleTest, SequencesOfAPassDoNotMix) {
    for_each_shape([&](const DeltaShape& shape) {
        const Tokens other = {8, 8, 30, 2, 1, 0, 47};
        const Right right(*reference_, shape, other), deepest(*reference_, shape, Nodes::text_to(Nodes::deepest)),
            text(*reference_, shape, Nodes::text());
        World world(*device_, shape);
        world.run(text_of({other.begin(), other.begin() + 4}, 0, 1));
        const std::vector<Row> first = text_of(Nodes::text()), second = text_of({1, 0}, 4, 1);
        std::vector<Row> rows;
        for (const std::size_t node : {std::size_t{5}, std::size_t{7}, std::size_t{2}})
            rows.push_back(Nodes::row(node));
        rows.push_back(second[0]);
        rows.insert(rows.end(), first.begin(), first.end());
        rows.push_back(Nodes::row(0));
        rows.push_back(second[1]);
        rows.push_back({1, 47, 6, {70}});  // a slot of the same number
        rows.push_back(Nodes::row(6));
        const std::vector<Bytes> outputs = world.run(rows);
        expect_equal(deepest.outputs.back(), outputs[1], "node");
        expect_equal(right.outputs[4], outputs[3], "text");
        expect_equal(text.outputs[4], outputs[8], "text");
        expect_equal(right.outputs[5], outputs[10], "text");
        expect_equal(right.outputs[6], outputs[11], "node");
        world.accept(1, {70});
        expect_equal(text.state, world.state(0), "state");
        expect_equal(right.state, world.state(1), "state");
    });
}

TEST_P(DeltaRuleTest, WrongCallsAreLogicErrors) {
    KvLayout layout{.num_layers = 1};
    layout.delta = shapes.front();
    Buffer page(*device_, layout.delta.page_bytes(1, 64));
    std::byte* const pages[] = {page.data()};
    const AttentionSequence sequence{pages, {}};
    const std::int32_t slot = 0;
    const AttentionRow row{.position = 0, .in_pages = 1, .path = &slot};
    const KvSlot nowhere{};
    device_->begin_pass({.sequences = {&sequence, 1}, .rows = {&row, 1}, .slots = {&nowhere, 1}});
    EXPECT_THROW(device_->delta_rule()->mix(layout, 0, {}, nullptr, 1000, nullptr, nullptr), std::logic_error);
    EXPECT_THROW(device_->delta_rule()->mix(layout, 1, {}, nullptr, 1000, nullptr, nullptr), std::logic_error);
    EXPECT_THROW(device_->delta_rule()->mix(layout, 0, {}, nullptr, 1, nullptr, nullptr), std::logic_error);
}

INSTANTIATE_TEST_SUITE_P(Devices, DeltaRuleTest, ::testing::ValuesIn(all_devices()), name_of);

}  // namespace
}  // namespace longhaul::kernels::testing
