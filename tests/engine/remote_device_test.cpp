// RemoteDevice: checkpoints are written from its memory while decoding continues, and it catches the errors that it is
// there to catch.
#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <mutex>

#include "tests/engine/remote_device.hpp"
#include "tests/engine/replica_harness.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;
namespace fs = std::filesystem;

/// Makes an export wait for passes. After 20 passes, further passes wait for an export to begin, so that a late export
/// thread cannot miss them.
class PassCount {
  public:
    void pass() {
        std::unique_lock lock(mutex_);
        ++passes_;
        changed_.notify_all();
        if (passes_ > 20) changed_.wait_for(lock, patience, [&] { return export_began_; });
    }
    /// False on timeout.
    bool wait_for_more(int passes) {
        std::unique_lock lock(mutex_);
        export_began_ = true;
        changed_.notify_all();
        const int until = passes_ + passes;
        return changed_.wait_for(lock, patience, [&] { return passes_ >= until; });
    }

  private:
    static constexpr std::chrono::seconds patience{20};
    bool export_began_ = false;
    std::mutex mutex_;
    std::condition_variable changed_;
    int passes_ = 0;
};

// The first KV read for a checkpoint does not end before three more passes have begun. A step that waited for it would
// never begin them.
TEST(ExportFromADevice, RunsBesideDecoding) {
    const fs::path folder = fs::temp_directory_path() / ("longhaul-export-" + std::to_string(::getpid()));
    PassCount count;
    std::once_flag first;
    bool came = false;
    std::atomic<std::int64_t> exports = 0;
    Job job{base_options()};
    job.items = 1;
    job.options.draft.method = "ar";
    job.generation.max_tokens = 40;
    job.options.checkpoint.folder = folder;
    job.options.checkpoint.epoch = 1;
    job.options.checkpoint.every_tokens = 8;
    job.results_durable = false;
    job.make_device = [&] {
        auto device = make_remote();
        device->pass_begins = [&] { count.pass(); };
        device->export_begins = [&] {
            ++exports;
            std::call_once(first, [&] { came = count.wait_for_more(3); });
        };
        return device;
    };
    const JobResult result = launch(job);
    EXPECT_TRUE(came);
    EXPECT_EQ(result.outcome.checkpoint_error, "");
    const std::int64_t rounds = result.outcome.progress.checkpoint_rounds;
    EXPECT_GT(rounds, 0);
    EXPECT_LE(exports, 2 * (rounds + 1)) << "keys of all layers and heads at once, and values";
    fs::remove_all(folder);
}

TEST(RemoteDeviceDeathTest, TheHostCannotTouchItsMemory) {
    ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
    const auto device = make_remote();
    const kernels::Buffer buffer(*device, 64);
    EXPECT_DEATH(static_cast<void>(*const_cast<volatile float*>(buffer.as<float>())), "");
    std::vector<float> here(16);
    EXPECT_THROW(device->add(here.data(), buffer.as<float>(), 16), std::logic_error);
}

TEST(RemoteDevice, OperationsAreDoneWhenTheirResultIsAskedFor) {
    const auto device = make_remote();
    const kernels::Buffer x(*device, 64), y(*device, 64);
    std::vector<float> ones(16, 1.0F), sum(16);
    device->upload(x.data(), ones.data(), 64);
    device->upload(y.data(), ones.data(), 64);
    ones.assign(16, 5.0F);
    device->add(x.as<float>(), y.as<float>(), 16);
    device->download(sum.data(), x.data(), 64);
    EXPECT_EQ(sum, std::vector<float>(16, 2.0F));
}

}  // namespace
}  // namespace longhaul::engine
