// Which kernel computes: that of clusters and warpgroups on GPUs that have them. Their results are compared with those
// of other kernels elsewhere, which shows nothing where the others compute.
#include <gtest/gtest.h>

#include "kernels/cuda/attention_tensor.cuh"
#include "kernels/cuda/attention_warpgroup.cuh"
#include "kernels/cuda/cuda_device.hpp"
#include "kernels/cuda/matmul_cluster.cuh"
#include "kernels/cuda/matmul_slices.cuh"
#include "tests/kernels/attention_scene.hpp"

namespace longhaul::kernels::testing {
namespace {

/// Launches of a kernel while this exists.
class Launched {
  public:
    template <class... Params>
    explicit Launched(void (*kernel)(Params...))
        : kernel_(reinterpret_cast<const void*>(kernel)), before_(cuda::emulation::launches_of(kernel_)) {}
    [[nodiscard]] std::int64_t count() const { return cuda::emulation::launches_of(kernel_) - before_; }

  private:
    const void* kernel_;
    std::int64_t before_;
};

void multiply(const DeviceCase& which, std::int64_t outputs, std::int64_t num_rows) {
    constexpr std::int64_t inputs = 256;
    const auto device = which.make(1);
    Numbers numbers(1);
    const std::vector<std::byte> weights = rounded(numbers.normals(outputs * inputs), DType::bf16);
    const WeightRows rows{weights.data(), DType::bf16, outputs, inputs, 0, inputs};
    const Matrix w = device->pack(DType::bf16, {&rows, 1}, 8, inputs / 8);
    const std::vector<std::byte> inputs_of_rows = rounded(numbers.normals(num_rows * inputs), DType::bf16);
    const OnDevice x(*device, std::span(inputs_of_rows));
    const Guarded y(*device, static_cast<std::size_t>(num_rows * outputs) * 4);
    device->matmul(w, x.data(), inputs, num_rows, y.floats());
    static_cast<void>(y.values());  // waits
}

TEST(KernelChoice, ClustersComputePrompts) {
    const Launched fours(cuda::cluster_matmul<cuda::ClusterShape<16, 2, 2>, false>);
    const Launched twos(cuda::cluster_matmul<cuda::ClusterShape<16, 1, 2>, false>);
    multiply(older_gpu(), 1024, 140);
    multiply(tensor_gpu(), 128, 140);  // too few blocks
    EXPECT_EQ(fours.count() + twos.count(), 0);
    multiply(tensor_gpu(), 1024, 140);
    EXPECT_EQ(fours.count(), 1);
    multiply(tensor_gpu(), 1024, 70);  // one group of rows: half of each four would be outside
    EXPECT_EQ(twos.count(), 1);
}

TEST(KernelChoice, BlocksOfOneSliceComputeTrees) {
    const Launched few(cuda::slice_matmul<cuda::SliceTile<4>, 8, false>);
    const Launched more(cuda::slice_matmul<cuda::SliceTile<8>, 8, false>);
    multiply(older_gpu(), 256, 40);
    multiply(tensor_gpu(), 1024, 40);  // more tiles than multiprocessors
    EXPECT_EQ(more.count(), 0);
    multiply(tensor_gpu(), 256, 40);
    EXPECT_EQ(more.count(), 1);
    multiply(tensor_gpu(), 256, 20);
    EXPECT_EQ(few.count(), 1);
}

void attend(const DeviceCase& which, const Case& c) {
    const auto device = which.make(1);
    static_cast<void>(Scene(*device, c, 1).run(*device, DType::f32).bytes());
}

TEST(KernelChoice, WarpgroupsComputeAttentionOfManyQueries) {
    const Launched wide(cuda::warpgroup_kernel<128>), half(cuda::warpgroup_kernel<64>);
    const Case prompt{DType::bf16, 128, 2, 4, 700, 64, false};
    attend(older_gpu(), prompt);
    attend(tensor_gpu(), {DType::bf16, 128, 2, 4, 700, 3, false});  // few queries
    EXPECT_EQ(wide.count(), 0);
    for (const Case& c : {prompt, Case{DType::bf16, 96, 2, 7, 513, 30, false}}) {
        const Launched one(cuda::warpgroup_kernel<128>);
        attend(tensor_gpu(), c);
        EXPECT_GT(one.count(), 0) << c;
    }
    for (const Case& c :
         {Case{DType::bf16, 64, 2, 8, 1030, 32, false}, Case{DType::bf16, 64, 2, 4, 3100, 32, true, 1500}}) {
        const Launched one(cuda::warpgroup_kernel<64>);
        attend(tensor_gpu(), c);
        EXPECT_GT(one.count(), 0) << c;
    }
    EXPECT_GT(half.count(), 0);
}

TEST(KernelChoice, TensorCoresComputeAttentionOverInt8) {
    const Launched narrow(cuda::tensor_kernel<128, 1, DType::int8>), wide(cuda::tensor_kernel<128, 4, DType::int8>);
    attend(exact_gpu(), {DType::int8, 128, 2, 4, 700, 20, true});
    EXPECT_EQ(narrow.count() + wide.count(), 0);
    attend(tensor_gpu(), {DType::int8, 128, 2, 4, 700, 3, true});
    EXPECT_GT(narrow.count(), 0);
    EXPECT_EQ(wide.count(), 0);
    attend(tensor_gpu(), {DType::int8, 128, 2, 4, 700, 20, true});
    EXPECT_GT(wide.count(), 0);
}

}  // namespace
}  // namespace longhaul::kernels::testing
