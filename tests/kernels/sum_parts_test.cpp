// Sums over the ranks' parts have the same bits on GPUs as on hosts.
#include "kernels/cuda/links.hpp"
#include "kernels/sum_ranks.hpp"
#include "tests/kernels/kernels_testing.hpp"

namespace longhaul::kernels::testing {
namespace {

TEST(SumParts, HasTheBitsOfTheHostsSum) {
    Numbers numbers(81);
    const cuda::Stream stream;
    for (const int num_parts : {1, 2, 4, 8}) {
        for (const std::int64_t count : {1, 255, 1000}) {
            const std::vector<float> parts = numbers.normals(num_parts * count, 1e-38F);  // some sums are denormals
            std::vector<const float*> pointers;
            for (int p = 0; p < num_parts; ++p) pointers.push_back(parts.data() + p * count);
            std::vector<float> expected(static_cast<std::size_t>(count)), actual(expected.size(), -1.0F);
            sum_ranks(expected.data(), pointers, count, 1);
            cuda::sum_parts(stream, actual.data(), parts.data(), num_parts, count);
            stream.synchronize();
            EXPECT_EQ(expected, actual) << num_parts << " parts of " << count;
        }
    }
    EXPECT_THROW(cuda::sum_parts(stream, nullptr, nullptr, 3, 1), std::logic_error);
    const std::vector<const float*> three(3);
    EXPECT_THROW(sum_ranks(nullptr, three, 1, 1), std::logic_error);
    EXPECT_THROW(sum_ranks(nullptr, {}, 1, 1), std::logic_error);
}

}  // namespace
}  // namespace longhaul::kernels::testing
