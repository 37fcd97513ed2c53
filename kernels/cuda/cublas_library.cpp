// BlockLibrary of cuBLASLt. The library is loaded on first use: it is half a gigabyte that only `kernels = cuda-cublas`
// needs.
//
// Uses only algorithms without a workspace and without split-K: one block then computes each sum, and nothing can make
// the result depend on which block ends first.
#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <map>
#include <source_location>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/block_library.hpp"
#include "kernels/cuda/shared_library.hpp"

namespace longhaul::kernels::cuda {
namespace {

constexpr std::int64_t rows_per_call = 512;
constexpr std::uint32_t alignment = 16;
constexpr int max_algorithms = 16;

/// The functions of cuBLASLt that are called.
struct Functions {
    Functions() {
        static const std::string newest = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
        const SharedLibrary library("cuBLASLt", {newest.c_str()});
        library.find(get_version, "cublasLtGetVersion");
        library.find(get_status_string, "cublasLtGetStatusString");
        library.find(create, "cublasLtCreate");
        library.find(destroy, "cublasLtDestroy");
        library.find(create_layout, "cublasLtMatrixLayoutCreate");
        library.find(destroy_layout, "cublasLtMatrixLayoutDestroy");
        library.find(create_matmul, "cublasLtMatmulDescCreate");
        library.find(destroy_matmul, "cublasLtMatmulDescDestroy");
        library.find(set_matmul, "cublasLtMatmulDescSetAttribute");
        library.find(create_preference, "cublasLtMatmulPreferenceCreate");
        library.find(destroy_preference, "cublasLtMatmulPreferenceDestroy");
        library.find(set_preference, "cublasLtMatmulPreferenceSetAttribute");
        library.find(find_algorithms, "cublasLtMatmulAlgoGetHeuristic");
        library.find(get_algorithm, "cublasLtMatmulAlgoConfigGetAttribute");
        library.find(multiply, "cublasLtMatmul");
    }
    static const Functions& get() {
        static const Functions only;
        return only;
    }

    decltype(&cublasLtGetVersion) get_version{};
    decltype(&cublasLtGetStatusString) get_status_string{};
    decltype(&cublasLtCreate) create{};
    decltype(&cublasLtDestroy) destroy{};
    decltype(&cublasLtMatrixLayoutCreate) create_layout{};
    decltype(&cublasLtMatrixLayoutDestroy) destroy_layout{};
    decltype(&cublasLtMatmulDescCreate) create_matmul{};
    decltype(&cublasLtMatmulDescDestroy) destroy_matmul{};
    decltype(&cublasLtMatmulDescSetAttribute) set_matmul{};
    decltype(&cublasLtMatmulPreferenceCreate) create_preference{};
    decltype(&cublasLtMatmulPreferenceDestroy) destroy_preference{};
    decltype(&cublasLtMatmulPreferenceSetAttribute) set_preference{};
    decltype(&cublasLtMatmulAlgoGetHeuristic) find_algorithms{};
    decltype(&cublasLtMatmulAlgoConfigGetAttribute) get_algorithm{};
    decltype(&cublasLtMatmul) multiply{};
};

void check(cublasStatus_t status, std::source_location where = std::source_location::current()) {
    if (status == CUBLAS_STATUS_SUCCESS) return;
    throw CudaError(std::string("cuBLASLt: ") + Functions::get().get_status_string(status) + " in " +
                    where.function_name());
}

/// A cuBLASLt handle with a single owner.
template <typename Handle, auto destroy>
class Owned {
  public:
    Owned() = default;
    Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Owned& operator=(Owned&& other) noexcept {
        std::swap(handle_, other.handle_);
        return *this;
    }
    ~Owned() {
        if (handle_ != nullptr) static_cast<void>((Functions::get().*destroy)(handle_));
    }
    [[nodiscard]] Handle get() const { return handle_; }
    [[nodiscard]] Handle* to_create() { return &handle_; }

  private:
    Handle handle_{};
};
using Library = Owned<cublasLtHandle_t, &Functions::destroy>;
using Layout = Owned<cublasLtMatrixLayout_t, &Functions::destroy_layout>;
using MatmulDescriptor = Owned<cublasLtMatmulDesc_t, &Functions::destroy_matmul>;
using Preference = Owned<cublasLtMatmulPreference_t, &Functions::destroy_preference>;

/// cuBLASLt stores matrices by columns: our rows are its columns.
Layout make_layout(cudaDataType type, std::int64_t columns, std::int64_t rows, std::int64_t stride) {
    Layout layout;
    check(Functions::get().create_layout(layout.to_create(), type, static_cast<std::uint64_t>(columns),
                                         static_cast<std::uint64_t>(rows), stride));
    return layout;
}

template <typename T>
T attribute(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t which) {
    T value{};
    std::size_t written = 0;
    check(Functions::get().get_algorithm(&algorithm, which, &value, sizeof value, &written));
    return value;
}

/// The descriptors that cuBLASLt needs for a shape, and the algorithms it found.
struct Plan {
    MatmulDescriptor kind;
    Layout w, x, y;
    std::vector<cublasLtMatmulAlgo_t> algorithms;
};

class CublasLibrary final : public BlockLibrary {
  public:
    explicit CublasLibrary(const Stream& stream) : stream_(stream) { check(use_.create(library_.to_create())); }

    [[nodiscard]] std::int64_t block_rows() const override { return rows_per_call; }

    [[nodiscard]] int num_algorithms(const BlockShape& shape) override {
        return static_cast<int>(plan(shape).algorithms.size());
    }

    [[nodiscard]] std::string describe(const BlockShape& shape, int algorithm) override {
        const cublasLtMatmulAlgo_t& known = plan(shape).algorithms.at(static_cast<std::size_t>(algorithm));
        const auto number = [&](cublasLtMatmulAlgoConfigAttributes_t which) {
            return std::to_string(attribute<std::uint32_t>(known, which));
        };
        const auto short_number = [&](cublasLtMatmulAlgoConfigAttributes_t which) {
            return std::to_string(attribute<std::uint16_t>(known, which));
        };
        return "algorithm " + std::to_string(attribute<std::int32_t>(known, CUBLASLT_ALGO_CONFIG_ID)) + ", tile " +
               number(CUBLASLT_ALGO_CONFIG_TILE_ID) + ", stages " + number(CUBLASLT_ALGO_CONFIG_STAGES_ID) +
               ", swizzling " + number(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING) + ", option " +
               number(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION) + ", inner shape " +
               short_number(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID) + ", cluster " +
               short_number(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID);
    }

    void multiply(const BlockShape& shape, int algorithm, const std::byte* w, const std::byte* x, float* y) override {
        const Plan& plan = this->plan(shape);
        const float one = 1.0F;
        const float zero = 0.0F;
        check(use_.multiply(library_.get(), plan.kind.get(), &one, w, plan.w.get(), x, plan.x.get(), &zero, y,
                            plan.y.get(), y, plan.y.get(), &plan.algorithms.at(static_cast<std::size_t>(algorithm)),
                            nullptr, 0, stream_.native()));
    }

  private:
    const Plan& plan(const BlockShape& shape) {
        const auto known = plans_.find(shape);
        return known != plans_.end() ? known->second : plans_.emplace(shape, make_plan(shape)).first->second;
    }

    [[nodiscard]] Plan make_plan(const BlockShape& shape) const {
        Plan plan;
        check(use_.create_matmul(plan.kind.to_create(), CUBLAS_COMPUTE_32F, CUDA_R_32F));
        const cublasOperation_t transposed = CUBLAS_OP_T;
        check(use_.set_matmul(plan.kind.get(), CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
        plan.w = make_layout(CUDA_R_16BF, shape.inputs, shape.outputs, shape.inputs);
        plan.x = make_layout(CUDA_R_16BF, shape.inputs, rows_per_call, shape.x_stride);
        plan.y = make_layout(CUDA_R_32F, shape.outputs, rows_per_call, shape.outputs);
        find_algorithms(plan);
        return plan;
    }

    void find_algorithms(Plan& plan) const {
        Preference preference;
        check(use_.create_preference(preference.to_create()));
        const auto set = [&](cublasLtMatmulPreferenceAttributes_t which, auto value) {
            check(use_.set_preference(preference.get(), which, &value, sizeof value));
        };
        set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{0});
        set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE});
        for (const auto operand :
             {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
              CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
            set(operand, alignment);
        }
        std::array<cublasLtMatmulHeuristicResult_t, max_algorithms> found{};
        int count = 0;
        const cublasStatus_t status =
            use_.find_algorithms(library_.get(), plan.kind.get(), plan.w.get(), plan.x.get(), plan.y.get(),
                                 plan.y.get(), preference.get(), max_algorithms, found.data(), &count);
        if (status == CUBLAS_STATUS_NOT_SUPPORTED) return;  // no algorithm
        check(status);
        for (const auto& each : std::span(found).first(static_cast<std::size_t>(count))) {
            // The other fields are valid only on success.
            if (each.state != CUBLAS_STATUS_SUCCESS || each.workspaceSize != 0) continue;
            const bool one_sum = attribute<std::int32_t>(each.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) <= 1 &&
                                 attribute<std::uint32_t>(each.algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) ==
                                     CUBLASLT_REDUCTION_SCHEME_NONE;
            if (one_sum) plan.algorithms.push_back(each.algo);
        }
    }

    const Functions& use_ = Functions::get();
    const Stream& stream_;
    Library library_;
    std::map<BlockShape, Plan> plans_;
};

}  // namespace

std::unique_ptr<BlockLibrary> make_block_library(const Stream& stream) {
    return std::make_unique<CublasLibrary>(stream);
}

std::string block_library_version() {
    const std::size_t version = Functions::get().get_version();
    return "cuBLASLt " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
           std::to_string(version % 100);
}

}  // namespace longhaul::kernels::cuda
