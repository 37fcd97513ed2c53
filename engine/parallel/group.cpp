#include "engine/parallel/group.hpp"

#include <algorithm>
#include <barrier>
#include <cstring>
#include <stdexcept>

#include "engine/bytes.hpp"
#include "engine/error.hpp"
#include "kernels/flush_denormals.hpp"

namespace longhaul::engine {
namespace {

class LocalGroup final : public Group {
  public:
    [[nodiscard]] int rank() const override { return 0; }
    [[nodiscard]] int size() const override { return 1; }
    void all_reduce(float*, std::int64_t) override {}
    void all_gather(const float* send, float* recv, std::int64_t count) override {
        std::memcpy(recv, send, static_cast<std::size_t>(count) * sizeof(float));
    }
    void broadcast(std::vector<std::byte>&) override {}
    std::vector<std::vector<std::byte>> gather(std::span<const std::byte> bytes) override {
        return {std::vector<std::byte>(bytes.begin(), bytes.end())};
    }
};

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

void check_size(int size) {
    if (size != 1 && size != 2 && size != 4 && size != 8) {
        throw std::logic_error("a group has 1, 2, 4 or 8 ranks, not " + std::to_string(size));
    }
}

class MpiGroup final : public Group {
  public:
    explicit MpiGroup(MPI_Comm communicator) : communicator_(communicator) {
        check_mpi(MPI_Comm_rank(communicator, &rank_), "MPI_Comm_rank");
        check_mpi(MPI_Comm_size(communicator, &size_), "MPI_Comm_size");
        check_size(size_);
    }

    [[nodiscard]] int rank() const override { return rank_; }
    [[nodiscard]] int size() const override { return size_; }

    void all_reduce(float* data, std::int64_t count) override {
        const kernels::FlushDenormals flush;  // as inside the kernels, or one rank would add other bits than eight
        // Long messages go by halves, so that each byte travels once; the pairs, and with them the sums, are the same.
        if (count >= halving_from && count % size_ == 0) return all_reduce_by_halves(data, count);
        partner_.resize(static_cast<std::size_t>(count));
        for (int step = 1; step < size_; step *= 2) {
            exchange(data, count, partner_.data(), count, rank_ ^ step);
            for (std::int64_t i = 0; i < count; ++i) data[i] += partner_[static_cast<std::size_t>(i)];
        }
    }

    void all_gather(const float* send, float* recv, std::int64_t count) override {
        check_mpi(MPI_Allgather(send, as_int(count), MPI_FLOAT, recv, as_int(count), MPI_FLOAT, communicator_),
                  "MPI_Allgather");
    }

    void broadcast(std::vector<std::byte>& bytes) override {
        auto num_bytes = static_cast<std::int64_t>(bytes.size());
        MPI_Request request = MPI_REQUEST_NULL;
        check_mpi(MPI_Ibcast(&num_bytes, 1, MPI_INT64_T, 0, communicator_, &request), "MPI_Ibcast");
        wait(request);
        bytes.resize(static_cast<std::size_t>(num_bytes));
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
    static constexpr std::int64_t halving_from = 16384;  // f32 values: above it bandwidth, below it latency decides

    void wait(MPI_Request& request) const {
        for (;;) {
            int done = 0;
            check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
            if (done != 0) return;
            if (while_waiting_) while_waiting_();
        }
    }

    void exchange(const float* send, std::int64_t num_send, float* recv, std::int64_t num_recv, int partner) {
        check_mpi(MPI_Sendrecv(send, as_int(num_send), MPI_FLOAT, partner, 0, recv, as_int(num_recv), MPI_FLOAT,
                               partner, 0, communicator_, MPI_STATUS_IGNORE),
                  "MPI_Sendrecv");
    }

    // Reduce-scatter by recursive halving (partner rank^1 first, so that pairs add as in the short form), then gather
    // back.
    void all_reduce_by_halves(float* data, std::int64_t count) {
        partner_.resize(static_cast<std::size_t>(count) / 2);
        std::int64_t begin = 0;
        std::int64_t length = count;
        for (int step = 1; step < size_; step *= 2) {
            length /= 2;
            const bool upper = (rank_ & step) != 0;
            float* keep = data + begin + (upper ? length : 0);
            const float* send = data + begin + (upper ? 0 : length);
            exchange(send, length, partner_.data(), length, rank_ ^ step);
            for (std::int64_t i = 0; i < length; ++i) keep[i] += partner_[static_cast<std::size_t>(i)];
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
    int rank_ = 0;
    int size_ = 1;
    std::vector<float> partner_;
};

/// What the threads of a thread group share. Each collective: publish, barrier, read the others, barrier.
struct ThreadExchange {
    explicit ThreadExchange(int size) : barrier(size), floats(static_cast<std::size_t>(size)), bytes(floats.size()) {}
    std::barrier<> barrier;
    std::vector<std::vector<float>> floats;
    std::vector<std::vector<std::byte>> bytes;
};

class ThreadGroup final : public Group {
  public:
    ThreadGroup(std::shared_ptr<ThreadExchange> exchange, int rank, int size)
        : exchange_(std::move(exchange)), rank_(rank), size_(size) {}

    [[nodiscard]] int rank() const override { return rank_; }
    [[nodiscard]] int size() const override { return size_; }

    void all_reduce(float* data, std::int64_t count) override {
        const kernels::FlushDenormals flush;
        for (int step = 1; step < size_; step *= 2) {
            mine().assign(data, data + count);
            exchange_->barrier.arrive_and_wait();
            const std::vector<float>& other = exchange_->floats[static_cast<std::size_t>(rank_ ^ step)];
            for (std::int64_t i = 0; i < count; ++i) data[i] += other[static_cast<std::size_t>(i)];
            exchange_->barrier.arrive_and_wait();
        }
    }

    void all_gather(const float* send, float* recv, std::int64_t count) override {
        mine().assign(send, send + count);
        exchange_->barrier.arrive_and_wait();
        for (int r = 0; r < size_; ++r) {
            std::memcpy(recv + r * count, exchange_->floats[static_cast<std::size_t>(r)].data(),
                        static_cast<std::size_t>(count) * sizeof(float));
        }
        exchange_->barrier.arrive_and_wait();
    }

    void broadcast(std::vector<std::byte>& bytes) override {
        if (rank_ == 0) exchange_->bytes[0] = bytes;
        exchange_->barrier.arrive_and_wait();
        if (rank_ != 0) bytes = exchange_->bytes[0];
        exchange_->barrier.arrive_and_wait();
    }

    std::vector<std::vector<std::byte>> gather(std::span<const std::byte> bytes) override {
        exchange_->bytes[static_cast<std::size_t>(rank_)].assign(bytes.begin(), bytes.end());
        exchange_->barrier.arrive_and_wait();
        std::vector<std::vector<std::byte>> all;
        if (rank_ == 0) all = exchange_->bytes;
        exchange_->barrier.arrive_and_wait();
        return all;
    }

  private:
    std::vector<float>& mine() { return exchange_->floats[static_cast<std::size_t>(rank_)]; }

    std::shared_ptr<ThreadExchange> exchange_;
    int rank_;
    int size_;
};

}  // namespace

std::int64_t least_of(Group& group, std::int64_t mine) {
    if (group.size() == 1) return mine;
    ByteWriter message;
    message.put(mine);
    std::int64_t all = mine;
    for (const std::vector<std::byte>& part : group.gather(message.bytes())) {
        all = std::min(all, ByteReader(part).get<std::int64_t>());
    }
    ByteWriter agreed;
    agreed.put(all);
    group.broadcast(agreed.bytes());
    return ByteReader(agreed.bytes()).get<std::int64_t>();
}

std::unique_ptr<Group> make_local_group() {
    return std::make_unique<LocalGroup>();
}

std::unique_ptr<Group> make_mpi_group(MPI_Comm communicator) {
    return std::make_unique<MpiGroup>(communicator);
}

std::vector<std::unique_ptr<Group>> make_thread_groups(int size) {
    check_size(size);
    auto exchange = std::make_shared<ThreadExchange>(size);
    std::vector<std::unique_ptr<Group>> groups;
    groups.reserve(static_cast<std::size_t>(size));
    for (int rank = 0; rank < size; ++rank) groups.push_back(std::make_unique<ThreadGroup>(exchange, rank, size));
    return groups;
}

}  // namespace longhaul::engine
