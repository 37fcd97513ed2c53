#include "runner/host/world.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <stdexcept>
#include <thread>

#include "engine/failure.hpp"

namespace longhaul::runner {
namespace {

void check(int result, const char* what) {
    if (result == MPI_SUCCESS) return;
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    MPI_Error_string(result, text.data(), &length);
    throw Error(std::string("MPI: expected ") + what + " to work, got " + text.data());
}

}  // namespace

World::World() {
    int provided = 0;
    // Only the main thread calls MPI, except that the watchdog may abort.
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "MPI_Init_thread");
    if (provided < MPI_THREAD_SERIALIZED) {
        MPI_Finalize();
        throw Error("MPI: expected a library with MPI_THREAD_SERIALIZED, got less");
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
    MPI_Comm node = MPI_COMM_NULL;
    check(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node),
          "MPI_Comm_split_type");
    MPI_Comm_rank(node, &node_rank_);
    MPI_Comm_size(node, &node_size_);
    MPI_Comm_free(&node);
    std::array<char, 256> host{};
    ::gethostname(host.data(), host.size() - 1);
    host_ = host.data();
}

World::~World() {
    if (replica_comm_ != MPI_COMM_NULL) MPI_Comm_free(&replica_comm_);
    MPI_Finalize();
}

void World::split(int ranks_per_replica) {
    replica_ = rank_ / ranks_per_replica;
    num_replicas_ = size_ / ranks_per_replica;
    if (replica_comm_ != MPI_COMM_NULL) MPI_Comm_free(&replica_comm_);
    check(MPI_Comm_split(MPI_COMM_WORLD, replica_, rank_, &replica_comm_), "MPI_Comm_split");
    MPI_Comm_rank(replica_comm_, &rank_in_replica_);
}

void abort_all(const std::string& line, int code) noexcept {
    std::fprintf(stderr, "error: %s\n", line.c_str());
    std::fflush(stderr);
    ::alarm(10);  // if MPI_Abort hangs, SIGALRM ends the process
    MPI_Abort(MPI_COMM_WORLD, code);
    std::_Exit(code);
}

int exit_code_of_ranks(const std::function<int()>& body) {
    try {
        return body();
    } catch (const AgreedFailure& failure) {
        return failure.code;
    } catch (const std::exception&) {
        const Failure failure = current_failure();
        abort_all(failure.line, static_cast<int>(failure.code));
    }
}

void World::agree_on_collective(const std::function<void()>& body) const {
    const bool alone = replica_comm_ == MPI_COMM_NULL || size_ == num_replicas_;
    if (alone) return agree(body);
    agree([&] {
        try {
            body();
        } catch (const Error&) {
            throw;
        } catch (const std::exception&) {
            const Failure failure = current_failure();
            abort_all(failure.line, static_cast<int>(failure.code));
        }
    });
}

void World::agree(const std::function<void()>& body) const {
    std::string line;
    int code = 0;
    try {
        body();
    } catch (const std::exception&) {
        const Failure failure = current_failure();
        line = failure.line;
        code = static_cast<int>(failure.code);
    }
    const int mine = code == 0 ? INT_MAX : rank_;
    int failed = INT_MAX;
    MPI_Allreduce(&mine, &failed, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    if (failed == INT_MAX) return;
    // Only rank 0 prints, so that lines of several ranks do not mix.
    if (failed != 0 && rank_ == failed) {
        MPI_Send(line.data(), static_cast<int>(line.size()), MPI_CHAR, 0, 0, MPI_COMM_WORLD);
    } else if (failed != 0 && rank_ == 0) {
        MPI_Status status;
        int length = 0;
        MPI_Probe(failed, 0, MPI_COMM_WORLD, &status);
        MPI_Get_count(&status, MPI_CHAR, &length);
        line.resize(length);
        MPI_Recv(line.data(), length, MPI_CHAR, failed, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    if (rank_ == 0) {
        std::fprintf(stderr, "error: %s\n", line.c_str());
        std::fflush(stderr);
    }
    MPI_Bcast(&code, 1, MPI_INT, failed, MPI_COMM_WORLD);
    throw AgreedFailure{code, rank_ == 0 ? line : ""};
}

namespace {

/// Rank 0's elements to all ranks, in pieces: MPI counts are int.
template <typename Elements>
void broadcast_elements(Elements& elements, MPI_Datatype type) {
    std::int64_t size = std::ssize(elements);
    MPI_Bcast(&size, 1, MPI_INT64_T, 0, MPI_COMM_WORLD);
    elements.resize(size);
    constexpr std::int64_t piece = 1 << 26;
    for (std::int64_t first = 0; first < size; first += piece)
        MPI_Bcast(elements.data() + first, static_cast<int>(std::min(piece, size - first)), type, 0, MPI_COMM_WORLD);
}

}  // namespace

void World::broadcast(std::string& bytes) const {
    broadcast_elements(bytes, MPI_CHAR);
}

void World::broadcast(std::vector<std::int64_t>& numbers) const {
    broadcast_elements(numbers, MPI_INT64_T);
}

std::vector<std::string> World::gather(const std::string& bytes) const {
    const int mine = static_cast<int>(bytes.size());
    std::vector<int> sizes(size_), offsets(sizes.size());
    MPI_Gather(&mine, 1, MPI_INT, sizes.data(), 1, MPI_INT, 0, MPI_COMM_WORLD);
    int total = 0;
    for (std::size_t i = 0; i < sizes.size() && rank_ == 0; ++i) {
        offsets[i] = total;
        total += sizes[i];
    }
    std::string all(total, '\0');
    MPI_Gatherv(bytes.data(), mine, MPI_CHAR, all.data(), sizes.data(), offsets.data(), MPI_CHAR, 0, MPI_COMM_WORLD);
    std::vector<std::string> parts;
    for (std::size_t i = 0; i < sizes.size() && rank_ == 0; ++i) {
        parts.push_back(all.substr(offsets[i], sizes[i]));
    }
    return parts;
}

bool World::any(bool mine) const {
    const int here = mine ? 1 : 0;
    int anywhere = 0;
    MPI_Allreduce(&here, &anywhere, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    return anywhere != 0;
}

void World::wait_for_all(const std::function<void()>& poke) const {
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Ibarrier(MPI_COMM_WORLD, &request);
    for (;;) {
        int done = 0;
        MPI_Test(&request, &done, MPI_STATUS_IGNORE);
        if (done != 0) return;
        if (poke) poke();
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
}

}  // namespace longhaul::runner
