// All-reduce with NCCL: NCCL transfers the ranks' parts, and we add them in the order of the contract, which NCCL's own
// reductions do not guarantee (SumOrder::library uses those nevertheless).
//
// Small messages (a decode step): one all-gather, and every rank adds all parts itself. Large messages: each rank
// receives and adds the parts of its own share, then the shares are exchanged. That is twice the latency for 2 /
// num_ranks of the bytes.
//
// The communicator is blocking: a non-blocking one starts a thread for every call. A watchdog (link_watchdog.hpp)
// aborts it when another rank is lost, which ends all waits. Only the connection itself is not watched, because NCCL
// has no communicator to abort yet: there the launch's own watchdog ends a rank that hangs.
//
// Run with one rank only: no machine with two GPUs was available.
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <memory>
#include <source_location>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/check.hpp"
#include "kernels/cuda/cuda_device.hpp"
#include "kernels/cuda/link_watchdog.hpp"
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
        library.find(all_reduce, "ncclAllReduce");
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
    decltype(&ncclAllReduce) all_reduce{};
    decltype(&ncclAllGather) all_gather{};
    decltype(&ncclGroupStart) group_start{};
    decltype(&ncclGroupEnd) group_end{};
    decltype(&ncclSend) send{};
    decltype(&ncclRecv) receive{};
};

constexpr std::int64_t few_bytes = 1 << 20;  ///< max bytes of all parts that a rank gathers

/// A call queues work and returns, but the first one also connects the ranks.
constexpr std::chrono::seconds call_limit{60}, disconnect_limit{5};

void check(ncclResult_t result, std::source_location where = std::source_location::current()) {
    if (result == ncclSuccess) return;
    throw CudaError(std::string("NCCL: ") + Nccl::get().get_error_string(result) + " in " + where.function_name());
}

/// The communicator and a mark on the stream, as the watchdog sees them.
class Communicator final : public WatchedLink {
  public:
    Communicator(NativeStream stream, int gpu, const ncclUniqueId& id, int rank, int size)
        : stream_(stream), gpu_(gpu) {
        cudaEvent_t mark{};
        cuda::check(cudaEventCreateWithFlags(&mark, cudaEventDisableTiming));
        mark_.reset(mark);
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 1;
        check(nccl_.comm_init(&group_, size, id, rank, &config));
    }
    ~Communicator() override { abort(); }
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    [[nodiscard]] ncclComm_t get() const { return group_; }
    /// Ends the communicator in agreement with the other ranks, which may still read what this one sent.
    ncclResult_t disconnect() {
        const ncclResult_t finalized = nccl_.comm_finalize(group_);
        return finalized == ncclSuccess ? nccl_.comm_destroy(std::exchange(group_, nullptr)) : finalized;
    }

    std::string fault() override {
        ncclResult_t state = ncclSuccess;
        if (group_ != nullptr) check(nccl_.comm_get_async_error(group_, &state));
        return state == ncclSuccess || state == ncclInProgress ? "" : nccl_.get_error_string(state);
    }
    void mark() override {
        use_gpu(gpu_);
        cuda::check(cudaEventRecord(mark_.get(), stream_));
    }
    bool passed_mark() override { return cudaEventQuery(mark_.get()) != cudaErrorNotReady; }
    void abort() noexcept override {
        if (group_ != nullptr) static_cast<void>(nccl_.comm_abort(std::exchange(group_, nullptr)));
    }

  private:
    const Nccl& nccl_ = Nccl::get();
    NativeStream stream_;  ///< without the launches that are not submitted yet
    int gpu_;
    ncclComm_t group_ = nullptr;
    struct DestroyEvent {
        void operator()(cudaEvent_t event) const { static_cast<void>(cudaEventDestroy(event)); }
    };
    std::unique_ptr<CUevent_st, DestroyEvent> mark_;
};

class NcclLink final : public DeviceLink {
  public:
    NcclLink(const Stream& stream, int gpu, SumOrder order, const ncclUniqueId& id, int rank, int size)
        : stream_(stream),
          order_(order),
          rank_(rank),
          size_(size),
          group_(stream.native(), gpu, id, rank, size),
          watchdog_(group_, {}) {}
    ~NcclLink() override {
        try {
            static_cast<void>(stream_.native());  // launches pending sums, which read parts_, before it is released
            check(watchdog_.call(disconnect_limit, [&] { return group_.disconnect(); }));
        } catch (const std::exception&) {  // thrown to the caller that waited for the sums; the communicator is aborted
        }
    }
    NcclLink(const NcclLink&) = delete;
    NcclLink& operator=(const NcclLink&) = delete;

    void all_reduce(float* data, std::int64_t count) override {
        if (count == 0) return;
        if (order_ == SumOrder::library) {
            return queue([&](NativeStream stream) {
                return nccl_.all_reduce(data, data, static_cast<std::size_t>(count), ncclFloat32, ncclSum, group_.get(),
                                        stream);
            });
        }
        if (count * size_ * static_cast<std::int64_t>(sizeof(float)) <= few_bytes) {
            auto* const parts = parts_.get<float>(stream_, count * size_);
            all_gather(data, parts, count);
            return sum_parts(stream_, data, parts, size_, count);
        }
        const std::int64_t share = (count + size_ - 1) / size_;
        const Share mine(rank_, share, count);
        auto* const parts = parts_.get<float>(stream_, share * size_);
        exchange([&](int peer, NativeStream stream) {
            const Share theirs(peer, share, count);
            send(data + theirs.first, theirs.count, peer, stream);
            receive(parts + peer * mine.count, mine.count, peer, stream);
        });
        if (mine.count > 0) sum_parts(stream_, data + mine.first, parts, size_, mine.count);
        exchange([&](int peer, NativeStream stream) {
            if (peer == rank_) return;
            const Share theirs(peer, share, count);
            send(data + mine.first, mine.count, peer, stream);
            receive(data + theirs.first, theirs.count, peer, stream);
        });
    }

    void all_gather(const float* data, float* received, std::int64_t count) override {
        if (count == 0) return;
        queue([&](NativeStream stream) {
            return nccl_.all_gather(data, received, static_cast<std::size_t>(count), ncclFloat32, group_.get(), stream);
        });
    }

    void finish() override {
        watchdog_.check();
        stream_.synchronize();
        watchdog_.check();  // an aborted collective ends, too
    }

  private:
    /// The range of elements that one rank adds.
    struct Share {
        Share(int rank, std::int64_t share, std::int64_t all)
            : first(std::min(rank * share, all)), count(std::min((rank + 1) * share, all) - first) {}
        std::int64_t first, count;
    };

    /// Queues operations of NCCL after all earlier operations on the stream.
    template <typename Operations>
    void queue(Operations operations) {
        const NativeStream stream = stream_.native();
        check(watchdog_.call(call_limit, [&] { return operations(stream); }));
        watchdog_.queued();
    }

    /// Calls `send_and_receive` for each rank, as one NCCL group.
    template <typename SendAndReceive>
    void exchange(SendAndReceive send_and_receive) {
        queue([&](NativeStream stream) {
            check(nccl_.group_start());
            for (int peer = 0; peer < size_; ++peer) send_and_receive(peer, stream);
            return nccl_.group_end();
        });
    }
    void send(const float* from, std::int64_t count, int peer, NativeStream stream) {
        if (count == 0) return;
        check(nccl_.send(from, static_cast<std::size_t>(count), ncclFloat32, peer, group_.get(), stream));
    }
    void receive(float* to, std::int64_t count, int peer, NativeStream stream) {
        if (count == 0) return;
        check(nccl_.receive(to, static_cast<std::size_t>(count), ncclFloat32, peer, group_.get(), stream));
    }

    const Nccl& nccl_ = Nccl::get();
    const Stream& stream_;
    SumOrder order_;
    int rank_;
    int size_;
    Workspace parts_;
    Communicator group_;
    LinkWatchdog watchdog_;
};

class NcclLinks final : public DeviceLinks {
  public:
    NcclLinks(const Stream& stream, int gpu, SumOrder order) : stream_(stream), gpu_(gpu), order_(order) {}

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
        return std::make_unique<NcclLink>(stream_, gpu_, order_, known, rank, size);
    }
    [[nodiscard]] SumOrder sum_order() const override { return order_; }

  private:
    const Stream& stream_;
    int gpu_;
    SumOrder order_;
};

}  // namespace

bool built_with_links() {
    return true;
}

std::unique_ptr<DeviceLinks> make_links(const Stream& stream, int gpu, SumOrder order) {
    return std::make_unique<NcclLinks>(stream, gpu, order);
}

}  // namespace longhaul::kernels::cuda
