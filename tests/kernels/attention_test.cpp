// Attention: vector devices against the reference, bit for bit; tree rows against the same chain in pages; the
// reference against a softmax in double precision.
#include <cstring>
#include <tuple>

#include "tests/kernels/attention_scene.hpp"

namespace longhaul::kernels::testing {
namespace {

std::vector<Case> cases() {
    std::vector<Case> all;
    for (const DType dtype : {DType::bf16, DType::f32, DType::int8}) {
        for (const bool tree : {false, true}) {
            all.push_back({dtype, 32, 2, 1, 1, 1, tree});
            all.push_back({dtype, 64, 2, 2, 37, 1, tree});
            all.push_back({dtype, 64, 1, 4, 130, 7, tree});
            all.push_back({dtype, 40, 1, 8, 511, 3, tree});
            all.push_back({dtype, 16, 2, 1, 512, 40, tree});
            all.push_back({dtype, 18, 3, 2, 513, 12, tree});
            all.push_back({dtype, 128, 1, 2, 1101, 5, tree});
            all.push_back({dtype, 32, 1, 1, 600, 90, tree});
            all.push_back({dtype, 32, 1, 1, 1023, 1, tree});
            all.push_back({dtype, 32, 1, 1, 90, 13, tree});  // rows that one matmul processes together
            all.push_back({dtype, 64, 1, 2, 530, 7, tree});
            // Few rows over several pages: values are read page by page.
            all.push_back({dtype, 128, 1, 1, 1101, 1, tree});
            all.push_back({dtype, 64, 2, 4, 1030, 1, tree});
            all.push_back({dtype, 40, 1, 3, 700, 1, tree});
            all.push_back({dtype, 64, 1, 1, 650, 5, tree});
        }
        all.push_back({dtype, 80, 1, 3, 1060, 2, true});
        all.push_back({dtype, 32, 1, 2, 505, 33, true});  // paths cross the end of a chunk
        all.push_back({dtype, 2, 1, 50, 70, 2, true});    // a single row exceeds a block of rows
        for (const bool tree : {false, true}) {  // sliding windows that begin in a page, at its end, chunks before
            all.push_back({dtype, 64, 1, 2, 1200, 1, tree, 100});
            all.push_back({dtype, 32, 2, 2, 1090, 24, tree, 64});
            all.push_back({dtype, 40, 1, 4, 1600, 50, tree, 513});
            all.push_back({dtype, 128, 1, 1, 2100, 3, tree, 1024});
            all.push_back({dtype, 16, 1, 8, 700, 9, tree, 3});  // shorter than some paths
            all.push_back({dtype, 64, 2, 1, 530, 40, tree, 1});
            all.push_back({dtype, 32, 1, 1, 300, 90, tree, 1000});  // longer than the text
        }
        all.push_back({dtype, 64, 1, 8, 700, 1, true, 0, true});
        all.push_back({dtype, 64, 2, 4, 1300, 20, false, 128, true});
        for (const float cap : {1.0F, 50.0F}) {
            all.push_back({dtype, 64, 1, 2, 700, 1, false, 0, false, cap});
            all.push_back({dtype, 32, 2, 4, 1300, 20, true, 100, true, cap});
            all.push_back({dtype, 256, 1, 1, 530, 9, true, 0, false, cap});
        }
        all.push_back({dtype, 18, 1, 5, 9000, 3, true, 0, true});  // more chunks than a warp of a GPU's merge has lanes
    }
    for (const std::int64_t rows : {1, 5})  // latent attention; so wide that a GPU has one page at a time
        all.push_back({DType::bf16, 576, 1, 16, 600, rows, true});
    all.push_back({DType::bf16, 8, 1, 1, 70'000, 1, true});  // more chunks than a block of a GPU's merge has threads
    return all;
}

class AttentionTest : public DeviceTest {};

/// Multiplies floating-point numbers with a mantissa of `mantissa` bits by 128, in place.
template <typename Bits, int mantissa>
void multiply_by_128(std::vector<std::byte>& numbers) {
    for (std::size_t at = 0; at < numbers.size(); at += sizeof(Bits)) {
        Bits bits;
        std::memcpy(&bits, &numbers[at], sizeof bits);
        if ((bits >> mantissa & 0xff) != 0) bits = static_cast<Bits>(bits + (7U << mantissa));
        std::memcpy(&numbers[at], &bits, sizeof bits);
    }
}

TEST_P(AttentionTest, EqualsReference) {
    Comparison comparison(GetParam());
    std::uint64_t seed = 100;
    for (const Case& c : cases()) {
        SCOPED_TRACE(::testing::Message() << c << ", seed " << ++seed);
        const DType act = seed % 2 == 0 ? DType::bf16 : DType::f32;
        const Scene expected_scene(*reference_, c, seed);
        const Scene scene(*device_, c, seed);
        ASSERT_EQ(expected_scene.q, scene.q);
        const Guarded expected = expected_scene.run(*reference_, act);
        const Guarded actual = scene.run(*device_, act);
        ASSERT_TRUE(comparison.equal(expected, actual, act));
        const auto one = GetParam().make(1);
        const Guarded alone = scene.run(*one, act);
        ASSERT_TRUE(comparison.equal(expected, alone, act)) << "one thread";
    }
    EXPECT_GT(comparison.count(), 20'000);
}

/// A sink of -infinity is none, and a very large one leaves nothing of the values.
TEST_P(AttentionTest, SinksThatAreNoNumbersEqualReference) {
    constexpr float inf = std::numeric_limits<float>::infinity();
    const Case c{DType::bf16, 32, 2, 2, 700, 3, true};
    const std::vector<float> without = Scene(*device_, c, 77).run(*device_, DType::f32).values();
    Scene expected(*reference_, c, 77), actual(*device_, c, 77);
    expected.sinks = actual.sinks = {-inf, 1e30F, -1e30F, std::nanf("")};
    const std::vector<float> wanted = expected.run(*reference_, DType::f32).values();
    const std::vector<float> got = actual.run(*device_, DType::f32).values();
    ASSERT_EQ(wanted.size(), got.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
        const std::size_t head = i / 32 % 4;
        if (head == 3) {
            ASSERT_TRUE(std::isnan(got[i]) && std::isnan(wanted[i])) << i;
            continue;
        }
        ASSERT_EQ(got[i], wanted[i]) << i;
        ASSERT_EQ(got[i], head == 1 ? 0 : without[i]) << i;
    }
}

/// Threads split chunks inside and between units: no split may change a bit.
TEST_P(AttentionTest, NumberOfThreadsDoesNotMatter) {
    Comparison comparison(GetParam());
    for (const std::int64_t num_rows : {1, 7, 13}) {
        const Case c{num_rows == 7 ? DType::int8 : DType::bf16, 64, 1, 2, 5000, num_rows, true};
        const std::uint64_t seed = 60 + static_cast<std::uint64_t>(num_rows);
        SCOPED_TRACE(::testing::Message() << c << ", seed " << seed);
        const Scene scene(*device_, c, seed);
        const auto one = GetParam().make(1);
        const Guarded expected = scene.run(*one, DType::f32);
        for (const int threads : {2, 3, 5, 8}) {
            const auto many = GetParam().make(threads);
            const Guarded actual = scene.run(*many, DType::f32);
            ASSERT_TRUE(comparison.equal(expected, actual, DType::f32)) << threads << " threads";
        }
    }
}

/// Most scores are far below the row's largest, so that whole registers of exponentials are 0.
TEST_P(AttentionTest, ScoresFarApart) {
    Comparison comparison(GetParam());
    std::uint64_t seed = 300;
    for (const DType dtype : {DType::bf16, DType::f32, DType::int8}) {
        for (const std::int64_t num_rows : {1, 5, 13}) {
            const Case c{dtype, 64, 1, 2, 700, num_rows, true};
            SCOPED_TRACE(::testing::Message() << c << ", seed " << ++seed);
            Scene expected_scene(*reference_, c, seed), scene(*device_, c, seed);
            for (Scene* some : {&expected_scene, &scene}) {
                some->layout.query_type() == DType::bf16 ? multiply_by_128<std::uint16_t, 7>(some->q)
                                                         : multiply_by_128<std::uint32_t, 23>(some->q);
            }
            ASSERT_EQ(expected_scene.q, scene.q);
            const Guarded expected = expected_scene.run(*reference_, DType::f32);
            ASSERT_TRUE(comparison.equal(expected, scene.run(*device_, DType::f32), DType::f32));
        }
    }
}

/// Sequences of different lengths and numbers of rows, with their rows interleaved, some in pages and some as trees.
TEST_P(AttentionTest, MixedBatchEqualsRowsAlone) {
    constexpr std::uint64_t seed = 77;
    Comparison comparison(GetParam());
    std::vector<std::unique_ptr<Scene>> scenes;
    std::vector<AttentionSequence> sequences;
    for (const std::int64_t context : {1, 100, 700}) {
        for (const bool tree : {false, true}) {
            const Case c{DType::bf16, 64, 2, 2, context, tree ? 9 : 4, tree};
            scenes.push_back(std::make_unique<Scene>(*device_, c, seed + sequences.size()));
            sequences.push_back(scenes.back()->sequence);
        }
    }
    const std::int64_t row_bytes = 4 * 64 * 2;
    std::vector<AttentionRow> rows;
    std::vector<std::byte> q;
    std::vector<std::byte> expected;
    for (std::size_t i = 0; i < 9; ++i) {  // row i of every sequence, one after another
        for (std::size_t s = 0; s < scenes.size(); ++s) {
            const Scene& scene = *scenes[s];
            if (i >= scene.rows.size()) continue;
            rows.push_back(scene.rows[i]);
            const std::byte* row_q = scene.q.data() + static_cast<std::int64_t>(i) * row_bytes;
            q.insert(q.end(), row_q, row_q + row_bytes);
            const auto alone =
                attend(*device_, scene.layout, 1, {&scene.sequence, 1}, {&rows.back(), 1}, row_q, 4, DType::bf16)
                    .bytes();
            expected.insert(expected.end(), alone.begin(), alone.end());
            rows.back().sequence = static_cast<std::int32_t>(s);
        }
    }
    const Guarded together = attend(*device_, scenes[0]->layout, 1, sequences, rows, q.data(), 4, DType::bf16);
    EXPECT_TRUE(together.intact());
    ASSERT_TRUE(comparison.equal(expected, together.bytes(), DType::bf16));
}

/// Tree nodes whose ancestors are in pages or in scratch slots: a node gives the bits of the last row of its own chain.
class PathContract : public ContractTest {};

/// Attention of the last row of node `n`'s chain (its context, then its path), with the whole chain in pages.
Guarded chain_in_pages(Device& device, const Scene& scene, std::size_t n, float perturbation) {
    const auto depth = static_cast<std::int64_t>(scene.tree.paths[n].size());
    const std::int64_t context = scene.rows[n].in_pages;
    const PageSet pages(device, scene.layout, context + depth);
    std::vector<KvSlot> slots;
    for (std::int64_t i = 0; i < context; ++i) slots.push_back(pages.slot(i));
    Tokens tokens = scene.context;
    tokens.qkv[static_cast<std::size_t>(tokens.q_heads * scene.layout.head_dim)] += perturbation;  // a key of token 0
    store(device, scene.layout, 1, tokens, 0, slots);
    std::vector<std::int64_t> chain;
    for (auto node = static_cast<std::int64_t>(n); node >= 0;
         node = scene.tree.parents[static_cast<std::size_t>(node)]) {
        chain.insert(chain.begin(), node);
    }
    std::vector<std::byte> q;
    for (std::int64_t i = 0; i < depth; ++i) {
        const KvSlot slot = pages.slot(context + i);
        q = store(device, scene.layout, 1, scene.nodes, chain[static_cast<std::size_t>(i)], {&slot, 1});
    }
    const AttentionSequence sequence{pages.pages(), {}};
    const AttentionRow row{0, context + depth - 1, context + depth, nullptr};
    return attend(device, scene.layout, 1, {&sequence, 1}, {&row, 1}, q.data(), scene.q_heads, DType::f32);
}

TEST_P(PathContract, NodeOfATreeEqualsItsChainInPages) {
    Comparison comparison(GetParam());
    const auto device = GetParam().make(2);
    for (const DType dtype : {DType::bf16, DType::f32, DType::int8}) {
        for (const auto& [context, window] : {std::pair(5, 0), {64, 0}, {509, 0}, {1000, 0}, {1000, 77}, {509, 4}}) {
            const Case c{dtype, 32, 2, 2, context, 24, true, window};
            const std::uint64_t seed = 200 + static_cast<std::uint64_t>(context);
            SCOPED_TRACE(::testing::Message() << c << ", seed " << seed);
            const Scene scene(*device, c, seed);
            const std::vector<std::byte> all = scene.run(*device, DType::f32).bytes();
            const std::size_t row_bytes = all.size() / scene.rows.size();
            for (std::size_t n = 0; n < scene.rows.size(); n += 5) {
                const std::vector<std::byte> node(all.begin() + static_cast<std::ptrdiff_t>(n * row_bytes),
                                                  all.begin() + static_cast<std::ptrdiff_t>((n + 1) * row_bytes));
                ASSERT_TRUE(comparison.equal(chain_in_pages(*device, scene, n, 0.0F).bytes(), node, DType::f32)) << n;
                // Negative control: a changed key is noticed, if it is not before the window.
                if (window > 0) continue;
                EXPECT_NE(chain_in_pages(*device, scene, n, 1.0F).bytes(), node) << n;
            }
        }
    }
}

/// The same ancestors may be in pages for one row of a call and in scratch slots for another.
TEST_P(PathContract, WhereAncestorsAreDoesNotMatter) {
    Comparison comparison(GetParam());
    const auto device = GetParam().make(2);
    for (const DType dtype : {DType::bf16, DType::f32, DType::int8}) {
        const KvLayout layout{.dtype = dtype, .num_layers = 2, .num_kv_heads = 1, .head_dim = 32};
        constexpr std::int64_t length = 540;
        Numbers numbers(91);
        const Tokens tokens(numbers, layout, 2, length);
        const PageSet pages(*device, layout, length);
        const PageSet scratch(*device, layout, length);
        std::vector<KvSlot> paged;
        std::vector<KvSlot> scattered;
        std::vector<std::int32_t> slots;
        for (std::int64_t i = 0; i < length; ++i) {
            slots.push_back(static_cast<std::int32_t>((i * 7) % length));
            paged.push_back(pages.slot(i));
            scattered.push_back(scratch.slot(slots.back()));
        }
        store(*device, layout, 1, tokens, 0, paged);
        const auto q = store(*device, layout, 1, tokens, 0, scattered);
        const std::size_t row_bytes = q.size() / length;
        const AttentionSequence sequence{pages.pages(), scratch.pages()};
        std::vector<AttentionRow> rows;
        std::vector<std::byte> row_q;
        for (const std::int64_t in_pages : {540, 539, 538, 513, 512, 511, 65, 64, 1, 0}) {
            rows.push_back({0, length - 1, in_pages, slots.data() + in_pages});
            row_q.insert(row_q.end(), q.end() - static_cast<std::ptrdiff_t>(row_bytes), q.end());
        }
        const std::vector<std::byte> all =
            attend(*device, layout, 1, {&sequence, 1}, rows, row_q.data(), 2, DType::f32).bytes();
        const std::size_t out_bytes = all.size() / rows.size();
        const std::vector<std::byte> first(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(out_bytes));
        for (std::size_t r = 1; r < rows.size(); ++r) {
            const auto from = all.begin() + static_cast<std::ptrdiff_t>(r * out_bytes);
            ASSERT_TRUE(comparison.equal(first, {from, from + static_cast<std::ptrdiff_t>(out_bytes)}, DType::f32))
                << rows[r].in_pages << " in pages";
        }
    }
}

/// Stale memory behind a sequence (another sequence's, even NaN) must not affect it.
TEST_P(PathContract, SlotsThatARowDoesNotSeeDoNotMatter) {
    Comparison comparison(GetParam());
    const auto device = GetParam().make(1);
    for (const DType dtype : {DType::bf16, DType::f32, DType::int8}) {
        const KvLayout layout{.dtype = dtype, .num_layers = 2, .num_kv_heads = 1, .head_dim = 24};
        Numbers numbers(92);
        Tokens tokens(numbers, layout, 1, 128);
        const PageSet clean(*device, layout, 128);
        const PageSet stale(*device, layout, 128);
        std::vector<KvSlot> slots;
        for (std::int64_t i = 0; i < 128; ++i) slots.push_back(stale.slot(i));
        Tokens bad = tokens;
        for (float& value : bad.qkv) value = std::nanf("");
        store(*device, layout, 1, bad, 0, slots);
        for (const std::int64_t length : {1, 2, 63, 64, 65, 101}) {
            std::vector<std::vector<std::byte>> results;
            for (const PageSet* pages : {&clean, &stale}) {
                slots.clear();
                for (std::int64_t i = 0; i < length; ++i) slots.push_back(pages->slot(i));
                const auto q = store(*device, layout, 1, tokens, 0, slots);
                const AttentionSequence sequence{pages->pages(), {}};
                const AttentionRow row{0, length - 1, length, nullptr};
                const std::byte* last =
                    q.data() + (length - 1) * 24 * static_cast<std::int64_t>(bytes_of(layout.query_type()));
                results.push_back(attend(*device, layout, 1, {&sequence, 1}, {&row, 1}, last, 1, DType::f32).bytes());
            }
            ASSERT_TRUE(comparison.equal(results[0], results[1], DType::f32)) << length << " tokens";
        }
    }
}

/// Sets two numbers of a token's value in the first KV head to NaN and -infinity, at the dimensions below, and stores
/// it again.
constexpr std::int64_t broken_dims[] = {3, 9};
void break_value(Device& device, const Scene& scene, Tokens tokens, std::int64_t token, KvSlot slot) {
    const std::int64_t value =
        token * tokens.width + (scene.q_heads + scene.layout.num_kv_heads) * scene.layout.head_dim;
    tokens.qkv[static_cast<std::size_t>(value + broken_dims[0])] = std::nanf("");
    tokens.qkv[static_cast<std::size_t>(value + broken_dims[1])] = -INFINITY;
    store(device, scene.layout, 1, tokens, token, {&slot, 1});
}

/// Draft nodes, and prompt tokens that share a tile with earlier ones.
class BrokenValues : public ContractTest {};
TEST_P(BrokenValues, ReachThoseAloneWhoSeeThem) {
    const auto device = GetParam().make(1);
    for (const Case& c : {Case{DType::bf16, 64, 1, 4, 70, 21, true}, Case{DType::bf16, 40, 2, 3, 130, 90, false},
                          Case{DType::bf16, 128, 2, 3, 160, 100, false}, Case{DType::bf16, 64, 2, 4, 50, 50, false},
                          Case{DType::f32, 40, 1, 2, 100, 30, true}, Case{DType::f32, 64, 1, 1, 100, 70, false}}) {
        SCOPED_TRACE(::testing::Message() << c);
        const Scene scene(*device, c, 210);
        const std::vector<float> before = scene.run(*device, DType::f32).values();
        const std::int64_t broken = c.tree ? 4 : c.context - 20;
        if (c.tree) {
            break_value(*device, scene, scene.nodes, broken, scene.scratch.slot(scene.tree.slot_of[4]));
        } else {
            break_value(*device, scene, scene.context, broken, scene.pages.slot(broken));
        }
        const std::vector<float> after = scene.run(*device, DType::f32).values();
        const std::size_t stride = after.size() / scene.rows.size();
        std::int64_t num_seeing = 0;
        for (std::size_t i = 0; i < after.size(); ++i) {
            const std::size_t r = i / stride;
            const auto& path = scene.tree.paths[r];
            const bool sees = c.tree ? std::find(path.begin(), path.end(), scene.tree.slot_of[4]) != path.end()
                                     : scene.rows[r].position >= broken;
            const auto in_row = static_cast<std::int64_t>(i % stride);
            const std::int64_t dim = in_row % c.head_dim;
            const bool is_broken =
                in_row < c.group_heads * c.head_dim && (dim == broken_dims[0] || dim == broken_dims[1]);
            num_seeing += sees && is_broken ? 1 : 0;
            if (sees && is_broken) {
                ASSERT_FALSE(std::isfinite(after[i])) << "row " << r << ", dimension " << dim;
            } else {
                ASSERT_EQ(after[i], before[i]) << "row " << r << ", dimension " << dim;
            }
        }
        EXPECT_GT(num_seeing, 0);
    }
}

/// Softmax in double precision over the stored (rounded) keys and values. p is rounded to bf16 (2^-9 relative), and
/// each p weights its value: the error of the output is at most 2^-9 of the weighted magnitudes; f32 steps are far
/// below that.
TEST_P(PathContract, AttentionIsRightInDoublePrecision) {
    const auto device = GetParam().make(1);
    for (const auto& [dtype, window, sinks, cap] : {std::tuple(DType::bf16, 0, false, 0.0F),
                                                    {DType::f32, 0, false, 0.0F},
                                                    {DType::f32, 7, false, 0.0F},
                                                    {DType::bf16, 150, false, 0.0F},
                                                    {DType::f32, 0, true, 0.0F},
                                                    {DType::f32, 0, false, 0.5F},
                                                    {DType::bf16, 33, true, 1.5F}}) {
        const Case c{dtype, 32, 1, 2, 700, 1, false, window, false, cap};
        const std::int64_t first = window > 0 ? 700 - window : 0;
        Scene scene(*device, c, 300);
        if (sinks) scene.sinks = {-0.5F, 4.0F};
        const std::vector<float> out = scene.run(*device, DType::f32).values();
        std::vector<std::byte> keys(static_cast<std::size_t>(704 * 32) * bytes_of(dtype));
        std::vector<std::byte> values(keys.size());
        for (std::int64_t page = 0; page < 11; ++page) {
            const auto at = static_cast<std::size_t>(page * 64 * 32) * bytes_of(dtype);
            const std::byte* from = scene.pages.pages()[static_cast<std::size_t>(page)];
            device->kv_export(scene.layout, from, 1, 0, false, 0, 64, keys.data() + at);
            device->kv_export(scene.layout, from, 1, 0, true, 0, 64, values.data() + at);
        }
        for (std::int64_t h = 0; h < 2; ++h) {
            std::vector<double> p;
            double largest = -1e30;
            for (std::int64_t t = first; t < 700; ++t) {
                double score = 0.0;
                for (std::int64_t d = 0; d < 32; ++d) {
                    score += static_cast<double>(load_as_f32(scene.q.data(), dtype, h * 32 + d)) *
                             static_cast<double>(load_as_f32(keys.data(), dtype, t * 32 + d));
                }
                score /= std::sqrt(32.0);
                p.push_back(cap > 0 ? cap * std::tanh(score / cap) : score);
                largest = std::max(largest, p.back());
            }
            double total = sinks ? std::exp(scene.sinks[static_cast<std::size_t>(h)] - largest) : 0.0;
            for (double& value : p) total += value = std::exp(value - largest);
            for (std::int64_t d = 0; d < 32; ++d) {
                double sum = 0.0;
                double magnitude = 0.0;
                for (std::int64_t t = first; t < 700; ++t) {
                    const double term = p[static_cast<std::size_t>(t - first)] / total *
                                        static_cast<double>(load_as_f32(values.data(), dtype, t * 32 + d));
                    sum += term;
                    magnitude += std::abs(term);
                }
                const double bound = (dtype == DType::bf16 ? 0x1p-9 : 0x1p-18) * magnitude;
                ASSERT_NEAR(out[static_cast<std::size_t>(h * 32 + d)], sum, bound)
                    << "head " << h << ", dimension " << d;
            }
        }
    }
}

/// int8 against f32 KV of the same tokens. A key is off by half a step of its largest number / 127, so a score of 64
/// normal numbers by about 0.01 and a probability by 1 %; a value by 0.4 % of its largest. Outputs are means of several
/// hundred values of unit variance, about 0.05 in size.
TEST_P(PathContract, Int8IsNearF32) {
    const auto device = GetParam().make(1);
    const Case exact{DType::f32, 64, 1, 2, 700, 1, false};
    Case whole = exact;
    whole.dtype = DType::int8;
    const std::vector<float> expected = Scene(*device, exact, 301).run(*device, DType::f32).values();
    const std::vector<float> actual = Scene(*device, whole, 301).run(*device, DType::f32).values();
    double error = 0.0;
    double size = 0.0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
        error += std::pow(expected[i] - actual[i], 2);
        size += std::pow(expected[i], 2);
    }
    EXPECT_LT(std::sqrt(error / size), 0.02);
    EXPECT_GT(error, 0.0);
}

/// Devices that equal the reference would not show that its orders differ: they do over bf16 keys and values alone, and
/// by no more than rounding.
TEST(Bf16OrderOfAttention, BlocksHaveBitsOfTheirOwnOverBf16Alone) {
    for (const DType dtype : {DType::bf16, DType::f32, DType::int8}) {
        const Case c{dtype, 64, 2, 2, 700, 3, true};
        const auto values = [&](Bf16Order order) {
            const auto device = make_reference_device(1, order);
            return Scene(*device, c, 78).run(*device, DType::f32).values();
        };
        const std::vector<float> pairs = values(Bf16Order::pairs), blocks = values(Bf16Order::blocks);
        if (dtype != DType::bf16) {
            EXPECT_EQ(pairs, blocks);
            continue;
        }
        EXPECT_NE(pairs, blocks);
        // A score's other rounding can change a probability's rounding to bf16, which is a part in 256.
        for (std::size_t i = 0; i < pairs.size(); ++i)
            ASSERT_NEAR(pairs[i], blocks[i], 0x1p-8F * (std::abs(pairs[i]) + 1.0F));
    }
}

INSTANTIATE_TEST_SUITE_P(Devices, AttentionTest, ::testing::ValuesIn(exact_devices()), name_of);
INSTANTIATE_TEST_SUITE_P(InBlocks, AttentionTest, ::testing::ValuesIn(devices_in_blocks()), name_of);
INSTANTIATE_TEST_SUITE_P(Devices, BrokenValues,
                         ::testing::Values(device_case(CpuVariant::reference), exact_gpu(), tensor_gpu()), name_of);
INSTANTIATE_TEST_SUITE_P(Devices, PathContract, ::testing::ValuesIn(all_devices()), name_of);
INSTANTIATE_TEST_SUITE_P(InBlocks, PathContract, ::testing::ValuesIn(devices_in_blocks()), name_of);

}  // namespace
}  // namespace longhaul::kernels::testing
