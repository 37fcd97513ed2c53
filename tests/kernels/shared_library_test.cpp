// Libraries loaded on demand: the message if one is missing.
#include "kernels/cuda/shared_library.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace longhaul::kernels::cuda {
namespace {

std::string failure(const std::function<void()>& load) {
    try {
        load();
    } catch (const CudaError& error) {
        return error.what();
    }
    return "(no error)";
}

TEST(SharedLibrary, FindsWhatIsThere) {
    const SharedLibrary library("mathematics", {"libnowhere.so.9", "libm.so.6"});
    double (*cosine)(double) = nullptr;
    library.find(cosine, "cos");
    EXPECT_EQ(cosine(0.0), 1.0);
    EXPECT_EQ(failure([&] { library.find(cosine, "nobodys_function"); }),
              "mathematics: expected nobodys_function in libm.so.6, got another version; install one that has it");
}

TEST(SharedLibrary, SaysWhichIsMissingAndTheMend) {
    EXPECT_EQ(
        failure([] {
            const SharedLibrary library("NCCL", {"libnowhere.so.9", "libnowhere.so"});
        }),
        "NCCL: expected the library libnowhere.so.9, got 'libnowhere.so.9: cannot open shared object file: No such "
        "file or directory'; install it, or add its folder to LD_LIBRARY_PATH");
}

}  // namespace
}  // namespace longhaul::kernels::cuda
