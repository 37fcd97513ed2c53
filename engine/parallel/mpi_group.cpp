// Group over MPI: shared memory within a node, messages between nodes.
#include <algorithm>
#include <array>
#include <cstring>
#include <stdexcept>
#include <string>

#include "engine/error.hpp"
#include "engine/parallel/group.hpp"
#include "engine/parallel/node_exchange.hpp"
#include "kernels/sum_ranks.hpp"

namespace longhaul::engine {
namespace {

constexpr auto slot_floats = static_cast<std::int64_t>(NodeExchange::slot_bytes / sizeof(float));

void check_mpi(int code, const char* call) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(code, text, &length);
    throw Error(std::string(call) + ": " + std::string(text, static_cast<std::size_t>(length)));
}

int as_int(std::int64_t count) {
    if (count < 0 || count > (std::int64_t{1} << 30))
        throw std::logic_error("MPI message too long: " + std::to_string(count));
    return static_cast<int>(count);
}

/// Creates the shared-memory exchange with the other ranks of this node. Returns nullptr on all ranks of the group if
/// the nodes do not hold subtrees of equal size or any node has no shared memory. Collective.
std::unique_ptr<NodeExchange> make_node_exchange(MPI_Comm group, int rank, const MpiGroupOptions& options) {
    if (!options.shared_memory) return nullptr;
    MPI_Comm node = MPI_COMM_NULL;
    check_mpi(options.ranks_per_node > 0 ? MPI_Comm_split(group, rank / options.ranks_per_node, rank, &node)
                                         : MPI_Comm_split_type(group, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node),
              "MPI_Comm_split");
    int node_rank = 0, size = 1, first = rank;
    MPI_Comm_rank(node, &node_rank);
    MPI_Comm_size(node, &size);
    MPI_Bcast(&first, 1, MPI_INT, 0, node);
    const bool subtree = (size & (size - 1)) == 0 && first % size == 0 && rank == first + node_rank;
    std::array<int, 3> extremes{subtree ? 1 : 0, size, -size};
    MPI_Allreduce(MPI_IN_PLACE, extremes.data(), 3, MPI_INT, MPI_MIN, group);
    std::unique_ptr<NodeExchange> exchange;
    if (extremes[0] == 1 && extremes[1] == -extremes[2] && size > 1) exchange = NodeExchange::create(node);
    MPI_Comm_free(&node);
    int works = exchange ? 1 : 0;
    MPI_Allreduce(MPI_IN_PLACE, &works, 1, MPI_INT, MPI_MIN, group);
    return works != 0 ? std::move(exchange) : nullptr;
}

class MpiGroup final : public Group {
  public:
    MpiGroup(MPI_Comm communicator, const MpiGroupOptions& options)
        : communicator_(communicator), threads_(options.threads) {
        check_mpi(MPI_Comm_rank(communicator, &rank_), "MPI_Comm_rank");
        check_mpi(MPI_Comm_size(communicator, &size_), "MPI_Comm_size");
        check_group_size(size_);
        node_ = make_node_exchange(communicator, rank_, options);
        node_size_ = node_ ? node_->size() : 1;
    }

    [[nodiscard]] int rank() const override { return rank_; }
    [[nodiscard]] int size() const override { return size_; }

    void all_reduce(float* data, std::int64_t count) override {
        if (!node_) return add_by_messages(data, count);
        for (std::int64_t first = 0; first < count; first += slot_floats) {
            const std::int64_t length = std::min(slot_floats, count - first);
            if (length < shares_from) {
                add_all_on_node(data + first, length);
            } else {
                add_shares_on_node(data + first, length);
            }
        }
    }

    void all_gather(const float* send, float* recv, std::int64_t count) override {
        if (!on_one_node()) {
            check_mpi(MPI_Allgather(send, as_int(count), MPI_FLOAT, recv, as_int(count), MPI_FLOAT, communicator_),
                      "MPI_Allgather");
            return;
        }
        for (std::int64_t first = 0; first < count; first += slot_floats) {
            const std::int64_t length = std::min(slot_floats, count - first);
            kernels::copy_floats(reinterpret_cast<float*>(node_->begin()), send + first, length, threads_);
            node_->post();
            for (int r = 0; r < size_; ++r) {
                const float* from = r == rank_ ? send + first : slot_of(r);
                kernels::copy_floats(recv + r * count + first, from, length, threads_);
            }
        }
    }

    void broadcast(std::vector<std::byte>& bytes) override {
        auto num_bytes = static_cast<std::int64_t>(bytes.size());
        if (on_one_node()) return broadcast_on_node(bytes);
        MPI_Request request = MPI_REQUEST_NULL;
        check_mpi(MPI_Ibcast(&num_bytes, 1, MPI_INT64_T, 0, communicator_, &request), "MPI_Ibcast");
        wait(request);
        bytes.resize(num_bytes);
        check_mpi(MPI_Bcast(bytes.data(), as_int(num_bytes), MPI_BYTE, 0, communicator_), "MPI_Bcast");
    }

    std::vector<std::vector<std::byte>> gather(std::span<const std::byte> bytes) override {
        const int mine = as_int(static_cast<std::int64_t>(bytes.size()));
        std::vector<int> counts(static_cast<std::size_t>(size_));
        std::vector<int> offsets(counts.size());
        MPI_Request request = MPI_REQUEST_NULL;
        check_mpi(MPI_Igather(&mine, 1, MPI_INT, counts.data(), 1, MPI_INT, 0, communicator_, &request), "MPI_Igather");
        wait(request);
        std::int64_t total = 0;
        for (std::size_t i = 0; i < counts.size(); ++i) {
            offsets[i] = as_int(total);
            total += counts[i];
        }
        std::vector<std::byte> all(rank_ == 0 ? static_cast<std::size_t>(total) : 0);
        check_mpi(MPI_Gatherv(bytes.data(), mine, MPI_BYTE, all.data(), counts.data(), offsets.data(), MPI_BYTE, 0,
                              communicator_),
                  "MPI_Gatherv");
        std::vector<std::vector<std::byte>> parts;
        if (rank_ != 0) return parts;
        for (std::size_t i = 0; i < counts.size(); ++i) {
            const auto begin = all.begin() + offsets[i];
            parts.emplace_back(begin, begin + counts[i]);
        }
        return parts;
    }

  private:
    // Minimum f32 count for which a sum within a node is done as a reduce-scatter and an all-gather: each rank sums its
    // share of the elements, so each byte is copied at most twice for any number of ranks. For shorter sums each rank
    // adds everything and waits for the others only once. With two ranks both are equally fast.
    static constexpr std::int64_t shares_from = 16384;
    static constexpr std::int64_t halving_from = 16384;  // f32 count: above it bandwidth dominates, below it latency

    [[nodiscard]] bool on_one_node() const { return node_size_ == size_; }
    [[nodiscard]] const float* slot_of(int rank) {
        return reinterpret_cast<const float*>(node_->await(rank % node_size_));
    }

    void wait(MPI_Request& request) const {
        for (;;) {
            int done = 0;
            check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
            if (done != 0) return;
            if (while_waiting_) while_waiting_();
        }
    }

    /// Each round carries the total size and one chunk of the bytes; as many rounds as needed.
    void broadcast_on_node(std::vector<std::byte>& bytes) {
        auto num_bytes = static_cast<std::int64_t>(bytes.size());
        constexpr auto max_bytes = static_cast<std::int64_t>(NodeExchange::slot_bytes - sizeof num_bytes);
        std::int64_t first = 0;
        do {
            std::byte* mine = node_->begin(while_waiting_);
            if (rank_ == 0) {
                std::memcpy(mine, &num_bytes, sizeof num_bytes);
                std::copy_n(bytes.data() + first, std::min(max_bytes, num_bytes - first), mine + sizeof num_bytes);
            }
            node_->post();
            if (rank_ != 0) {
                const std::byte* from = node_->await(0, while_waiting_);
                std::memcpy(&num_bytes, from, sizeof num_bytes);
                bytes.resize(num_bytes);
                std::copy_n(from + sizeof num_bytes, std::min(max_bytes, num_bytes - first), bytes.data() + first);
            }
            first += max_bytes;
        } while (first < num_bytes);
    }

    /// data[begin, end) += the same range of the slots of the node's other ranks, in tree order; then adds the other
    /// nodes.
    void add_slots(float* data, std::int64_t begin, std::int64_t end) {
        std::array<const float*, 8> parts{};
        for (int r = 0; r < node_size_; ++r) {
            parts[r] = (r == node_->rank() ? data : slot_of(r)) + begin;
        }
        const std::span used(parts.data(), static_cast<std::size_t>(node_size_));
        kernels::sum_ranks(data + begin, used, end - begin, threads_);
        add_across_nodes(data + begin, end - begin, node_size_);
    }

    void add_all_on_node(float* data, std::int64_t count) {
        kernels::copy_floats(reinterpret_cast<float*>(node_->begin()), data, count, threads_);
        node_->post();
        add_slots(data, 0, count);
    }

    /// First element of a rank's share; shares are whole cache lines.
    [[nodiscard]] std::int64_t share_begin(int node_rank, std::int64_t count) const {
        constexpr std::int64_t line = 16;
        return std::min(count, (count + line - 1) / line * node_rank / node_size_ * line);
    }

    void add_shares_on_node(float* data, std::int64_t count) {
        const int me = node_->rank();
        const std::int64_t begin = share_begin(me, count), end = share_begin(me + 1, count);
        auto* mine = reinterpret_cast<float*>(node_->begin());
        kernels::copy_floats(mine, data, begin, threads_);
        kernels::copy_floats(mine + end, data + end, count - end, threads_);
        node_->post();
        add_slots(data, begin, end);
        mine = reinterpret_cast<float*>(node_->begin());
        kernels::copy_floats(mine, data + begin, end - begin, threads_);
        node_->post();
        for (int i = 1; i < node_size_; ++i) {
            const int r = (me + i) % node_size_;
            const std::int64_t first = share_begin(r, count);
            kernels::copy_floats(data + first, slot_of(r), share_begin(r + 1, count) - first, threads_);
        }
    }

    void exchange(const float* send, std::int64_t num_send, float* recv, std::int64_t num_recv, int partner) {
        check_mpi(MPI_Sendrecv(send, as_int(num_send), MPI_FLOAT, partner, 0, recv, as_int(num_recv), MPI_FLOAT,
                               partner, 0, communicator_, MPI_STATUS_IGNORE),
                  "MPI_Sendrecv");
    }

    /// mine += theirs, added in rank order.
    void add(float* mine, const float* theirs, std::int64_t count, bool mine_first) const {
        const std::array<const float*, 2> parts{mine_first ? mine : theirs, mine_first ? theirs : mine};
        kernels::sum_ranks(mine, parts, count, threads_);
    }

    /// Adds the tree levels from `first_step` up by recursive doubling. On entry each block of `first_step` consecutive
    /// ranks holds the same values.
    void add_across_nodes(float* data, std::int64_t count, int first_step) {
        if (first_step < size_) partner_.resize(count);
        for (int step = first_step; step < size_; step *= 2) {
            exchange(data, count, partner_.data(), count, rank_ ^ step);
            add(data, partner_.data(), count, (rank_ & step) == 0);
        }
    }

    // Long sums use recursive halving, so that each byte is sent once. The pairs, and so the sums, are the same.
    void add_by_messages(float* data, std::int64_t count) {
        if (count >= halving_from && count % size_ == 0) return add_halves(data, count);
        add_across_nodes(data, count, 1);
    }

    // Reduce-scatter by recursive halving, then all-gather. Partner rank^1 comes first, so that pairs add as in
    // add_across_nodes.
    void add_halves(float* data, std::int64_t count) {
        partner_.resize(static_cast<std::size_t>(count) / 2);
        std::int64_t begin = 0;
        std::int64_t length = count;
        for (int step = 1; step < size_; step *= 2) {
            length /= 2;
            const bool upper = (rank_ & step) != 0;
            float* keep = data + begin + (upper ? length : 0);
            const float* send = data + begin + (upper ? 0 : length);
            exchange(send, length, partner_.data(), length, rank_ ^ step);
            add(keep, partner_.data(), length, !upper);
            if (upper) begin += length;
        }
        for (int step = size_ / 2; step >= 1; step /= 2) {
            const bool upper = (rank_ & step) != 0;
            const std::int64_t other = upper ? begin - length : begin + length;
            exchange(data + begin, length, data + other, length, rank_ ^ step);
            if (upper) begin -= length;
            length *= 2;
        }
    }

    MPI_Comm communicator_;
    int threads_;
    int rank_ = 0, size_ = 1;
    int node_size_ = 1;                   ///< ranks that share memory; they form a subtree of the sum
    std::unique_ptr<NodeExchange> node_;  ///< nullptr: messages only
    std::vector<float> partner_;
};

}  // namespace

std::unique_ptr<Group> make_mpi_group(MPI_Comm communicator, const MpiGroupOptions& options) {
    return std::make_unique<MpiGroup>(communicator, options);
}

}  // namespace longhaul::engine
