// Whatever comes for the second time is a graph, whose parameters may all have to be set: one that is not shows.
#pragma once

#include "kernels/cuda/launches.hpp"

namespace longhaul::kernels::testing {

constexpr cuda::GraphPolicy eager_graphs{.min_calls = 1, .max_calls = 5, .change_part = 1, .max_lists = 16};

}  // namespace longhaul::kernels::testing
