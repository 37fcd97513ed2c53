// KV caches larger than the device's memory: pages in device memory and in host memory, and the same text.
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <set>

#include "tests/engine/device_cases.hpp"
#include "tests/engine/remote_device.hpp"
#include "tests/engine/replica_harness.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;
namespace fs = std::filesystem;

std::unique_ptr<RemoteDevice> make_remote() {
    return std::make_unique<RemoteDevice>(kernels::make_cpu_device(kernels::available_cpu_variants().back(), 1));
}

/// Bytes per page of the tiny model on a remote device, for one of `ranks` ranks.
std::int64_t tiny_page_bytes(int ranks) {
    const auto device = make_remote();
    const auto group = make_local_group();
    const auto model = Model::load(tiny_model, Precision::bf16, *device, *group);
    return static_cast<std::int64_t>(device->kv_page_bytes(model->kv_layout())) / ranks;
}

class HostPages : public ::testing::Test {
  protected:
    std::unique_ptr<RemoteDevice> device_ = make_remote();
    kernels::KvLayout layout_{.dtype = kernels::DType::bf16, .num_layers = 2, .num_kv_heads = 1, .head_dim = 16};
    std::int64_t page_bytes_ = static_cast<std::int64_t>(device_->kv_page_bytes(layout_));
};

TEST_F(HostPages, AreTakenWhenNearOnesAreAllInUse) {
    PagePool pool(*device_, layout_, KvMemory{2 * page_bytes_, 3 * page_bytes_ + 1});
    EXPECT_EQ(pool.max_pages(), 5);
    EXPECT_EQ(pool.max_host_pages(), 3);
    std::vector<std::byte*> pages;
    for (int i = 0; i < 5; ++i) pages.push_back(pool.take());
    EXPECT_EQ(pool.take(), nullptr);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(pool.is_in_host_memory(pages[static_cast<std::size_t>(i)]), i >= 2);
    EXPECT_EQ(std::set<std::byte*>(pages.begin(), pages.end()).size(), 5U);
    EXPECT_EQ(pool.host_pages_in_use(), 3);
    pool.give_back(pages[4]);
    pool.give_back(pages[0]);
    EXPECT_EQ(pool.pages_in_use(), 3);
    EXPECT_EQ(pool.host_pages_in_use(), 2);
    EXPECT_EQ(pool.take(), pages[0]) << "near before far";
}

TEST_F(HostPages, AreNoneWhereTheDeviceHasNoUseForThem) {
    device_->host_memory = false;
    const PagePool pool(*device_, layout_, KvMemory{2 * page_bytes_, 3 * page_bytes_});
    EXPECT_EQ(pool.max_pages(), 2);
}

TEST_F(HostPages, ComeNearWithWhatTheyHold) {
    PagePool pool(*device_, layout_, KvMemory{2 * page_bytes_, 3 * page_bytes_});
    auto other = std::make_unique<KvSequence>(pool);
    ASSERT_TRUE(other->reserve(128));
    KvSequence kv(pool);
    ASSERT_TRUE(kv.reserve(192));
    kernels::KvBox box{.num_layers = 2, .first = 10, .count = 182};
    std::vector<std::byte> in(box.bytes(layout_)), out(in.size());
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::byte>(i * 7 + i / 256);
    device_->kv_import_box(layout_, kv.pages(), box, in.data(), in.size() / 2);
    EXPECT_EQ(kv.move_to_device(8), 0) << "there is no room";
    other.reset();
    EXPECT_EQ(kv.move_to_device(1), 1);
    EXPECT_EQ(pool.host_pages_in_use(), 2);
    EXPECT_EQ(kv.move_to_device(8), 1);
    EXPECT_EQ(pool.host_pages_in_use(), 1);
    EXPECT_EQ(pool.pages_in_use(), 3);
    device_->kv_export_box(layout_, kv.pages(), box, out.data(), in.size() / 2);
    EXPECT_EQ(out, in);
}

// Scratch pages come before the others: in host memory they would cross the link in every step. They keep their
// contents, which may be positions that drafts read again.
TEST_F(HostPages, OfDraftNodesComeNearAsTheyAre) {
    PagePool pool(*device_, layout_, KvMemory{page_bytes_, 2 * page_bytes_});
    auto other = std::make_unique<KvSequence>(pool);
    ASSERT_TRUE(other->reserve(64));
    KvSequence kv(pool);
    ASSERT_TRUE(kv.reserve_scratch(64));
    EXPECT_TRUE(pool.is_in_host_memory(kv.scratch_pages()[0]));
    EXPECT_EQ(kv.move_to_device(8), 0);
    EXPECT_TRUE(pool.is_in_host_memory(kv.scratch_pages()[0])) << "there is no room";
    const kernels::KvBox box{.num_layers = layout_.num_layers, .num_heads = layout_.num_kv_heads, .count = 64};
    std::vector<std::byte> in(box.bytes(layout_)), out(in.size());
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::byte>(i * 7 % 251);
    device_->kv_import_box(layout_, kv.scratch_pages(), box, in.data(), 64 * layout_.token_bytes());
    other.reset();
    EXPECT_EQ(kv.move_to_device(8), 1);
    EXPECT_FALSE(pool.is_in_host_memory(kv.scratch_pages()[0]));
    device_->kv_export_box(layout_, kv.scratch_pages(), box, out.data(), 64 * layout_.token_bytes());
    EXPECT_EQ(out, in);
    EXPECT_EQ(pool.host_pages_in_use(), 0);
    EXPECT_EQ(pool.pages_in_use(), 1);
}

/// One GPU is enough: how its kernels find pages is tested in tests/kernels.
std::vector<DeviceCase> cases() {
    return {gpu_cases().front(), {"remote", [] { return make_remote(); }, true, 4, 40}};
}

/// A device with space for a few KV pages of the tiny model.
class SmallDevice : public ::testing::TestWithParam<DeviceCase> {
  protected:
    SmallDevice() : folder_(fs::temp_directory_path() / ("longhaul-small-device-" + std::to_string(::getpid()))) {
        fs::remove_all(folder_);
        fs::create_directories(folder_);
    }
    ~SmallDevice() override { fs::remove_all(folder_); }
    void SetUp() override {
        const auto device = GetParam().make();
        if (device == nullptr) GTEST_SKIP() << "needs an NVIDIA GPU";
        const auto group = make_local_group();
        const auto model = Model::load(tiny_model, Precision::bf16, *device, *group);
        page_bytes_ = static_cast<std::int64_t>(device->kv_page_bytes(model->kv_layout()));
    }

    [[nodiscard]] Job job(std::int64_t near_pages, std::int64_t host_pages, std::int64_t batch) {
        Job job{base_options()};
        job.items = GetParam().items;
        job.generation.max_tokens = GetParam().tokens;
        job.options.batch = batch;
        job.options.kv_memory_bytes = near_pages * page_bytes_;
        job.options.kv_host_bytes = host_pages * page_bytes_;
        job.make_device = [this] {
            auto device = GetParam().make();
            if (auto* const remote = dynamic_cast<RemoteDevice*>(device.get())) {
                remote->host_allocates = [this] { ++host_slabs_; };
                is_counted_ = true;
            }
            return device;
        };
        return job;
    }
    /// Computed on a CPU.
    [[nodiscard]] std::map<std::int64_t, std::vector<std::int32_t>> expected() {
        Job plain = job(1000, 0, 1);
        plain.make_device = {};
        return tokens_of(launch(plain).items);
    }
    /// Not checked on a real GPU, where the allocations are not counted.
    void expect_host_pages() const { EXPECT_TRUE(host_slabs_ > 0 || !is_counted_); }

    fs::path folder_;
    std::int64_t page_bytes_ = 0;
    std::atomic<int> host_slabs_ = 0;
    std::atomic<bool> is_counted_ = false;
};

TEST_P(SmallDevice, CheckpointsAreWrittenAndReadInBothPlaces) {
    const auto right = expected();
    const JobResult result = launch_in_parts({job(1, 12, 2)}, folder_, GetParam().tokens * 3 / 4);
    EXPECT_EQ(tokens_of(result.items), right);
    EXPECT_EQ(result.outcome.checkpoint_error, "");
    EXPECT_GT(result.sum.resumes, 0);
    EXPECT_EQ(result.sum.recomputed_rows, 0);
    expect_host_pages();
}

INSTANTIATE_TEST_SUITE_P(Devices, SmallDevice, ::testing::ValuesIn(cases()),
                         [](const auto& of) { return of.param.name; });

TEST(HostMemoryTest, OneTextWhereverThePagesLie) {
    Job job{base_options()};
    const auto right = tokens_of(launch(job).items);
    std::atomic<int> host_slabs = 0;
    job.make_device = [&] {
        auto device = make_remote();
        device->host_allocates = [&] { ++host_slabs; };
        return device;
    };
    for (const std::int64_t near : {0, 1, 3}) {
        for (const std::int64_t batch : {1, 3}) {
            for (const int ranks : {1, 2}) {
                host_slabs = 0;
                job.options.kv_memory_bytes = near * tiny_page_bytes(ranks);
                job.options.kv_host_bytes = 12 * tiny_page_bytes(ranks);
                job.options.batch = batch;
                job.ranks = ranks;
                EXPECT_EQ(tokens_of(launch(job).items), right) << near << ", " << batch << ", " << ranks;
                EXPECT_GT(host_slabs, 0);
            }
        }
    }
}

// Growing items are preempted when both memories are full. An item that fits in neither fails.
TEST(HostMemoryTest, ItemsWaitAndAreGivenUpAsElsewhere) {
    Job job{base_options()};
    job.options.batch = 8;
    job.make_device = [] { return make_remote(); };
    const auto right = tokens_of(launch(job).items);
    const std::int64_t page = tiny_page_bytes(1);
    for (const std::int64_t near : {2, 4}) {
        job.options.kv_memory_bytes = near * page;
        job.options.kv_host_bytes = (6 - near) * page;
        EXPECT_EQ(tokens_of(launch(job).items), right) << near;
    }
    job.options.kv_memory_bytes = page;
    job.options.kv_host_bytes = 2 * page;
    const JobResult result = launch(job);
    EXPECT_EQ(result.items.at(0).tokens, right.at(0));
    EXPECT_EQ(result.items.at(4).reason, FinishReason::error);
    EXPECT_NE(result.items.at(4).error.find("host-memory"), std::string::npos) << result.items.at(4).error;
}

// The target's pages leave the device memory to the draft models.
TEST(HostMemoryTest, DraftModelsStayNear) {
    Job job{base_options()};
    job.items = 3;
    job.generation.max_tokens = 30;
    job.make_device = [] { return make_remote(); };
    const auto right = tokens_of(launch(job).items);
    job.options.draft.method = "rsd-s";
    job.options.draft.tree = "3x3";
    job.draft_models = {fs::path(LONGHAUL_TEST_DATA "/parity/llama-yarn-bf16")};
    std::atomic<int> host_slabs = 0;
    job.make_device = [&] {
        auto device = make_remote();
        device->host_allocates = [&] { ++host_slabs; };
        return device;
    };
    job.options.kv_memory_bytes = 9 * tiny_page_bytes(1);
    job.options.kv_host_bytes = 6 * tiny_page_bytes(1);
    const JobResult result = launch(job);
    EXPECT_EQ(tokens_of(result.items), right);
    EXPECT_GT(result.sum.drafted, 0);
    EXPECT_GT(host_slabs, 0);
}

}  // namespace
}  // namespace longhaul::engine
