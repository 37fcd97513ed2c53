#include "kernels/gpu_devices.hpp"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace longhaul::kernels {
namespace {

TEST(GpuDevices, WhatIsMissingIsNamed) {
    std::string message;
    try {
        static_cast<void>(make_gpu_device(GpuArithmetic::exact, num_gpus()));
    } catch (const std::invalid_argument& error) {
        message = error.what();
    }
    const char* const fix = built_for_gpus() ? "CUDA_VISIBLE_DEVICES" : "-DLONGHAUL_CUDA=ON";
    EXPECT_NE(message.find(fix), std::string::npos) << message;
    EXPECT_TRUE(built_for_gpus() || num_gpus() == 0);
}

}  // namespace
}  // namespace longhaul::kernels
