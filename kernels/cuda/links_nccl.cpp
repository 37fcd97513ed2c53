// NCCL carries the ranks' parts; we add them, in the contract's order, which NCCL's own reductions do not promise.
//
// Few numbers (a decode step): every rank gets all parts and adds them itself, one collective. Many: a rank gets and
// adds the parts of its share of the numbers, then the shares go to all: twice the latency for 2 / num_ranks of the
// bytes.
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <source_location>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/cuda_device.hpp"
#include "kernels/cuda/links.hpp"

namespace longhaul::kernels::cuda {
namespace {

constexpr std::int64_t few_bytes = 1 << 20;  ///< what a rank receives when all get all

void check(ncclResult_t result, std::source_location where = std::source_location::current()) {
    if (result == ncclSuccess || result == ncclInProgress) return;
    throw CudaError(std::string("NCCL: ") + ncclGetErrorString(result) + " in " + where.function_name());
}

class NcclLink final : public DeviceLink {
  public:
    NcclLink(const Stream& stream, const ncclUniqueId& id, int rank, int size)
        : stream_(stream), rank_(rank), size_(size) {
        check(ncclCommInitRank(&group_, size, id, rank));
    }
    ~NcclLink() override {
        if (group_ != nullptr) static_cast<void>(ncclCommDestroy(group_));
    }
    NcclLink(const NcclLink&) = delete;
    NcclLink& operator=(const NcclLink&) = delete;

    void all_reduce(float* data, std::int64_t count) override {
        if (count == 0) return;
        if (group_ == nullptr) throw CudaError("NCCL: the ranks are no longer connected");
        if (count * (size_ - 1) * static_cast<std::int64_t>(sizeof(float)) <= few_bytes) {
            auto* const parts = parts_.get<float>(stream_, count * size_);
            check(ncclAllGather(data, parts, static_cast<std::size_t>(count), ncclFloat32, group_, stream_.native()));
            return sum_parts(stream_, data, parts, size_, count);
        }
        const std::int64_t share = (count + size_ - 1) / size_;
        const Share mine(rank_, share, count);
        auto* const parts = parts_.get<float>(stream_, share * size_);
        exchange([&](int peer) {
            const Share theirs(peer, share, count);
            send(data + theirs.first, theirs.count, peer);
            receive(parts + peer * mine.count, mine.count, peer);
        });
        if (mine.count > 0) sum_parts(stream_, data + mine.first, parts, size_, mine.count);
        exchange([&](int peer) {
            if (peer == rank_) return;
            const Share theirs(peer, share, count);
            send(data + mine.first, mine.count, peer);
            receive(data + theirs.first, theirs.count, peer);
        });
    }

    void finish() override {
        while (!stream_.done()) {
            ncclResult_t failure = ncclSuccess;
            check(ncclCommGetAsyncError(group_, &failure));
            if (failure != ncclSuccess && failure != ncclInProgress) {
                static_cast<void>(ncclCommAbort(group_));  // kernels that wait for the lost rank end with it
                group_ = nullptr;
                check(failure);
            }
            std::this_thread::yield();
        }
    }

  private:
    /// Numbers of one rank.
    struct Share {
        Share(int rank, std::int64_t share, std::int64_t all)
            : first(std::min(rank * share, all)), count(std::min((rank + 1) * share, all) - first) {}
        std::int64_t first, count;
    };

    /// Calls `send_and_receive` for each rank as one operation of the group.
    template <typename SendAndReceive>
    void exchange(SendAndReceive send_and_receive) {
        check(ncclGroupStart());
        for (int peer = 0; peer < size_; ++peer) send_and_receive(peer);
        check(ncclGroupEnd());
    }
    void send(const float* from, std::int64_t count, int peer) {
        if (count == 0) return;
        check(ncclSend(from, static_cast<std::size_t>(count), ncclFloat32, peer, group_, stream_.native()));
    }
    void receive(float* to, std::int64_t count, int peer) {
        if (count == 0) return;
        check(ncclRecv(to, static_cast<std::size_t>(count), ncclFloat32, peer, group_, stream_.native()));
    }

    const Stream& stream_;
    int rank_;
    int size_;
    ncclComm_t group_ = nullptr;
    Workspace parts_;
};

class NcclLinks final : public DeviceLinks {
  public:
    NcclLinks(const Stream& stream, int gpu) : stream_(stream), gpu_(gpu) {}

    [[nodiscard]] std::string address() const override { return "nccl " + properties_of(gpu_).uuid; }
    [[nodiscard]] std::vector<std::byte> new_id() const override {
        ncclUniqueId id;
        check(ncclGetUniqueId(&id));
        const auto bytes = std::as_bytes(std::span(&id, 1));
        return {bytes.begin(), bytes.end()};
    }
    std::unique_ptr<DeviceLink> join(std::span<const std::byte> id, int rank, int size) override {
        ncclUniqueId known;
        if (id.size() != sizeof known) throw CudaError("NCCL: an id of another version");
        std::memcpy(&known, id.data(), sizeof known);
        return std::make_unique<NcclLink>(stream_, known, rank, size);
    }

  private:
    const Stream& stream_;
    int gpu_;
};

}  // namespace

std::unique_ptr<DeviceLinks> make_links(const Stream& stream, int gpu) {
    return std::make_unique<NcclLinks>(stream, gpu);
}

}  // namespace longhaul::kernels::cuda
