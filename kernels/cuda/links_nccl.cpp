// All-reduce with NCCL: NCCL transfers the ranks' parts, and we add them in the order of the contract, which NCCL's own
// reductions do not guarantee.
//
// Small messages (a decode step): one all-gather, and every rank adds all parts itself. Large messages: each rank
// receives and adds the parts of its own share, then the shares are exchanged. That is twice the latency for 2 /
// num_ranks of the bytes.
//
// The communicator is non-blocking, so that no call waits forever for a lost rank: each wait checks NCCL's errors and a
// timeout.
//
// Compiled but never run: no machine with two GPUs, or even one, was available.
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <source_location>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "kernels/cuda/cuda_device.hpp"
#include "kernels/cuda/links.hpp"
#include "kernels/cuda/shared_library.hpp"

namespace longhaul::kernels::cuda {
namespace {

/// The functions of NCCL that are called; loaded when ranks are first connected.
struct Nccl {
    Nccl() {
        const SharedLibrary library("NCCL", {"libnccl.so.2", "libnccl.so"});
        library.find(get_error_string, "ncclGetErrorString");
        library.find(get_unique_id, "ncclGetUniqueId");
        library.find(comm_init, "ncclCommInitRankConfig");
        library.find(comm_finalize, "ncclCommFinalize");
        library.find(comm_destroy, "ncclCommDestroy");
        library.find(comm_abort, "ncclCommAbort");
        library.find(comm_get_async_error, "ncclCommGetAsyncError");
        library.find(all_gather, "ncclAllGather");
        library.find(group_start, "ncclGroupStart");
        library.find(group_end, "ncclGroupEnd");
        library.find(send, "ncclSend");
        library.find(receive, "ncclRecv");
    }
    static const Nccl& get() {
        static const Nccl only;
        return only;
    }

    decltype(&ncclGetErrorString) get_error_string{};
    decltype(&ncclGetUniqueId) get_unique_id{};
    decltype(&ncclCommInitRankConfig) comm_init{};
    decltype(&ncclCommFinalize) comm_finalize{};
    decltype(&ncclCommDestroy) comm_destroy{};
    decltype(&ncclCommAbort) comm_abort{};
    decltype(&ncclCommGetAsyncError) comm_get_async_error{};
    decltype(&ncclAllGather) all_gather{};
    decltype(&ncclGroupStart) group_start{};
    decltype(&ncclGroupEnd) group_end{};
    decltype(&ncclSend) send{};
    decltype(&ncclRecv) receive{};
};

constexpr std::int64_t few_bytes = 1 << 20;  ///< max bytes of all parts that a rank gathers

/// The ranks connect within seconds; a pass over many rows of a large model may take longer.
constexpr std::chrono::seconds connect_timeout{60}, pass_timeout{600}, disconnect_timeout{5};

void check(ncclResult_t result, std::source_location where = std::source_location::current()) {
    if (result == ncclSuccess || result == ncclInProgress) return;
    throw CudaError(std::string("NCCL: ") + Nccl::get().get_error_string(result) + " in " + where.function_name());
}

class NcclLink final : public DeviceLink {
  public:
    NcclLink(const Stream& stream, const ncclUniqueId& id, int rank, int size)
        : stream_(stream), rank_(rank), size_(size) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        try {
            check(nccl_.comm_init(&group_, size, id, rank, &config));
            wait(connect_timeout, [&] { return !in_progress(); });
        } catch (const CudaError&) {
            abort();
            throw;
        }
    }
    ~NcclLink() override {
        try {
            static_cast<void>(stream_.native());  // launches pending sums, which read parts_, before it is released
            if (group_ == nullptr) return;
            check(nccl_.comm_finalize(group_));  // other ranks may still read what this one sent
            wait(disconnect_timeout, [&] { return !in_progress(); });
            check(nccl_.comm_destroy(group_));
        } catch (const std::exception&) {
            abort();
        }
    }
    NcclLink(const NcclLink&) = delete;
    NcclLink& operator=(const NcclLink&) = delete;

    void all_reduce(float* data, std::int64_t count) override {
        if (count == 0) return;
        if (group_ == nullptr) throw CudaError("NCCL: the ranks are no longer connected");
        if (count * size_ * static_cast<std::int64_t>(sizeof(float)) <= few_bytes) {
            auto* const parts = parts_.get<float>(stream_, count * size_);
            queued(
                nccl_.all_gather(data, parts, static_cast<std::size_t>(count), ncclFloat32, group_, stream_.native()));
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

    void all_gather(const float* data, float* received, std::int64_t count) override {
        if (count == 0) return;
        if (group_ == nullptr) throw CudaError("NCCL: the ranks are no longer connected");
        queued(
            nccl_.all_gather(data, received, static_cast<std::size_t>(count), ncclFloat32, group_, stream_.native()));
    }

    void finish() override {
        if (group_ == nullptr) throw CudaError("NCCL: the ranks are no longer connected");
        try {
            wait(pass_timeout, [&] { return !in_progress() && stream_.done(); });
        } catch (const CudaError&) {
            abort();  // also ends kernels that wait for the lost rank
            throw;
        }
    }

  private:
    /// The range of elements that one rank adds.
    struct Share {
        Share(int rank, std::int64_t share, std::int64_t all)
            : first(std::min(rank * share, all)), count(std::min((rank + 1) * share, all) - first) {}
        std::int64_t first, count;
    };

    /// Whether NCCL is still processing the last call on the host; the work on the stream comes after that. Throws
    /// NCCL's errors.
    [[nodiscard]] bool in_progress() const {
        ncclResult_t state = ncclSuccess;
        check(nccl_.comm_get_async_error(group_, &state));
        check(state);
        return state == ncclInProgress;
    }
    template <typename Done>
    static void wait(std::chrono::seconds patience, const Done& done) {
        const auto end = std::chrono::steady_clock::now() + patience;
        while (!done()) {
            if (std::chrono::steady_clock::now() > end)
                throw CudaError("NCCL: no answer from the other ranks for " + std::to_string(patience.count()) + " s");
            std::this_thread::yield();
        }
    }
    /// Waits until NCCL has put the operation on the stream, so that later operations come after it.
    void queued(ncclResult_t result) {
        check(result);
        if (result == ncclInProgress) wait(connect_timeout, [&] { return !in_progress(); });
    }
    void abort() noexcept {
        if (group_ != nullptr) static_cast<void>(nccl_.comm_abort(group_));
        group_ = nullptr;
    }

    /// Calls `send_and_receive` for each rank, as one NCCL group.
    template <typename SendAndReceive>
    void exchange(SendAndReceive send_and_receive) {
        check(nccl_.group_start());
        for (int peer = 0; peer < size_; ++peer) send_and_receive(peer);
        queued(nccl_.group_end());
    }
    void send(const float* from, std::int64_t count, int peer) {
        if (count == 0) return;
        check(nccl_.send(from, static_cast<std::size_t>(count), ncclFloat32, peer, group_, stream_.native()));
    }
    void receive(float* to, std::int64_t count, int peer) {
        if (count == 0) return;
        check(nccl_.receive(to, static_cast<std::size_t>(count), ncclFloat32, peer, group_, stream_.native()));
    }

    const Nccl& nccl_ = Nccl::get();
    const Stream& stream_;
    int rank_;
    int size_;
    ncclComm_t group_ = nullptr;
    Workspace parts_;
};

class NcclLinks final : public DeviceLinks {
  public:
    NcclLinks(const Stream& stream, int gpu) : stream_(stream), gpu_(gpu) {}

    [[nodiscard]] std::string address() const override {
        static_cast<void>(Nccl::get());
        return "nccl " + properties_of(gpu_).uuid;
    }
    [[nodiscard]] std::vector<std::byte> new_id() const override {
        ncclUniqueId id;
        check(Nccl::get().get_unique_id(&id));
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
