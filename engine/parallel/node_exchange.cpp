#include "engine/parallel/node_exchange.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <new>
#include <random>
#include <string>

#include "engine/descriptor.hpp"
#include "kernels/waiting.hpp"

namespace longhaul::engine {
namespace {

/// Location of the first rank's memfd, for the other ranks: /proc/PROCESS/fd/FILE. The random mark identifies the file,
/// because the same process id may mean another process for another rank.
struct Address {
    std::int64_t process = 0;
    std::int64_t file = -1;
    std::uint64_t mark = 0;
};

int create_file(std::size_t num_bytes, std::uint64_t mark) {
    const int file = ::memfd_create("longhaul", MFD_CLOEXEC);
    if (file < 0) return -1;
    if (::ftruncate(file, static_cast<off_t>(num_bytes)) == 0 && ::pwrite(file, &mark, sizeof mark, 0) == sizeof mark) {
        return file;
    }
    ::close(file);
    return -1;
}

int open_file(const Address& address, std::size_t num_bytes) {
    const std::string path = "/proc/" + std::to_string(address.process) + "/fd/" + std::to_string(address.file);
    const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (file < 0) return -1;
    struct stat about {};
    std::uint64_t mark = 0;
    if (::fstat(file, &about) == 0 && S_ISREG(about.st_mode) && about.st_size == static_cast<off_t>(num_bytes) &&
        ::pread(file, &mark, sizeof mark, 0) == sizeof mark && mark == address.mark) {
        return file;
    }
    ::close(file);
    return -1;
}

}  // namespace

std::unique_ptr<NodeMemory> NodeMemory::create(MPI_Comm node, std::size_t bytes_per_rank) {
    int rank = 0, size = 1;
    MPI_Comm_rank(node, &rank);
    MPI_Comm_size(node, &size);
    const std::size_t num_bytes = mark_bytes + bytes_per_rank * static_cast<std::size_t>(size);
    Address address;
    if (rank == 0) {
        address = {::getpid(), -1, 0};
        try {
            std::random_device random;
            address.mark = (std::uint64_t{random()} << 32) | random();
            address.file = create_file(num_bytes, address.mark);
        } catch (const std::exception&) {  // no source of random numbers on this rank: no shared memory for any rank
        }
    }
    MPI_Bcast(&address, sizeof address, MPI_BYTE, 0, node);
    const Descriptor file(rank == 0 ? static_cast<int>(address.file) : open_file(address, num_bytes));
    // Each rank allocates the pages of its own part now: they are placed near that rank, and lack of memory is reported
    // here instead of as a signal later.
    const auto mine = static_cast<off_t>(mark_bytes + bytes_per_rank * static_cast<std::size_t>(rank));
    void* data = MAP_FAILED;
    if (file && ::posix_fallocate(file.get(), mine, static_cast<off_t>(bytes_per_rank)) == 0) {
        data = ::mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    }
    int works = data != MAP_FAILED ? 1 : 0, all_work = 0;
    MPI_Allreduce(&works, &all_work, 1, MPI_INT, MPI_MIN,
                  node);  // also ensures that no rank closes the file before all have opened it
    if (all_work != 0) return std::unique_ptr<NodeMemory>(new NodeMemory(static_cast<std::byte*>(data), num_bytes));
    if (works != 0) ::munmap(data, num_bytes);
    return nullptr;
}

NodeMemory::~NodeMemory() {
    ::munmap(mapped_, num_bytes_);
}

std::unique_ptr<NodeExchange> NodeExchange::create(MPI_Comm node) {
    int rank = 0, size = 1;
    MPI_Comm_rank(node, &rank);
    MPI_Comm_size(node, &size);
    std::unique_ptr<NodeMemory> memory = NodeMemory::create(node, rank_bytes);
    if (!memory) return nullptr;
    return std::unique_ptr<NodeExchange>(new NodeExchange(std::move(memory), rank, size));
}

NodeExchange::Head& NodeExchange::head(int rank) const {
    // Zero-filled memory is a valid counter of 0. No rank constructs the Head, because that could overwrite a value
    // another rank has already posted.
    return *reinterpret_cast<Head*>(memory_->data() + static_cast<std::size_t>(rank) * rank_bytes);
}

std::byte* NodeExchange::slot(int rank) const {
    return reinterpret_cast<std::byte*>(&head(rank)) + sizeof(Head) + (round_ % 2) * slot_bytes;
}

void NodeExchange::wait_for(int rank, std::uint64_t round, const Idle& idle) const {
    const std::atomic<std::uint64_t>& posted = head(rank).posted;
    for (kernels::Wait wait; posted.load(std::memory_order_acquire) < round; wait.pause()) {
        if (idle && wait.is_long()) idle();
    }
}

std::byte* NodeExchange::begin(const Idle& idle) {
    ++round_;
    for (int rank = 0; rank < size_; ++rank) wait_for(rank, round_ - 1, idle);
    return slot(rank_);
}

void NodeExchange::post() {
    head(rank_).posted.store(round_, std::memory_order_release);
}

const std::byte* NodeExchange::await(int rank, const Idle& idle) {
    wait_for(rank, round_, idle);
    return slot(rank);
}

}  // namespace longhaul::engine
