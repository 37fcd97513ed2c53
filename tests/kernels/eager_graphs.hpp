// A policy that turns a list into a graph the second time it comes, and allows all its parameters to change, so that a
// parameter that is not updated shows up in tests.
#pragma once

#include "kernels/cuda/launches.hpp"

namespace longhaul::kernels::testing {

constexpr cuda::GraphPolicy eager_graphs{.min_calls = 1, .max_calls = 5, .change_part = 1, .max_lists = 16};

}  // namespace longhaul::kernels::testing
