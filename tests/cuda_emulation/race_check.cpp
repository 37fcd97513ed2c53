#include "tests/cuda_emulation/race_check.hpp"

#include <sstream>

extern "C" const char __executable_start;  // NOLINT(bugprone-reserved-identifier): set by the linker

namespace longhaul::kernels::cuda::emulation {
namespace {

const char* name_of(Access access) {
    switch (access) {
        case Access::read:
            return " reads byte ";
        case Access::write:
            return " writes byte ";
        default:
            return " copies to byte ";
    }
}

/// As addr2line takes it.
std::string address_of(const void* place) {
    std::ostringstream text;
    text << "0x" << std::hex << static_cast<const char*>(place) - &__executable_start;
    return text.str();
}

std::string describe(const Moment& now, Access access, std::size_t byte, const std::string& before, const Moment& other,
                     const void* place, const void* other_place) {
    return "race in shared memory: thread " + std::to_string(now.thread) + name_of(access) + std::to_string(byte) +
           before + std::to_string(other.thread) + " without a barrier between (addr2line -ife PROGRAM " +
           address_of(place) + " " + address_of(other_place) + ")";
}

/// Whether `then` and `now`, in this order, may happen at once.
bool unordered(const Moment& then, const Moment& now) {
    if (then.thread == now.thread || then.block_barriers != now.block_barriers) return false;
    return then.warp() != now.warp() || then.warp_barriers == now.warp_barriers;
}

}  // namespace

bool SharedShadow::Byte::write_races(const Moment& now, Access access) const {
    if (!is_written) return false;
    const bool arrives = access == Access::copy_arrives && writer.thread == now.thread;
    return is_pending ? !arrives : unordered(writer, now);
}

bool SharedShadow::Byte::read_races(const Moment& now) const {
    if (reader.block_barriers != now.block_barriers) return false;
    if ((reading_warps & ~(1U << now.warp())) != 0) return true;
    return reader.warp_barriers == now.warp_barriers && (reading_lanes & ~(1U << now.lane())) != 0;
}

void SharedShadow::Byte::add_read(const Moment& now, const void* place) {
    if (reader.block_barriers != now.block_barriers) reading_warps = 0;
    if (reading_warps == 0 || reader.warp() != now.warp() || reader.warp_barriers != now.warp_barriers)
        reading_lanes = 0;
    reading_warps |= 1U << now.warp();
    reading_lanes |= 1U << now.lane();
    reader = now;
    read_place = place;
}

void SharedShadow::Byte::set_write(const Moment& now, Access access, const void* place) {
    is_written = true;
    is_pending = access == Access::copy_begins;
    writer = now;
    write_place = place;
}

std::string SharedShadow::note(std::size_t first, std::size_t count, Access access, const Moment& now,
                               const void* place) {
    if (bytes_.size() < first + count) bytes_.resize(first + count);
    std::string race;
    for (std::size_t at = first; at < first + count; ++at) {
        Byte& byte = bytes_[at];
        if (byte.block != block_) byte = {.block = block_, .writer = {}, .reader = {}};
        if (race.empty() && byte.write_races(now, access))
            race = describe(now, access, at,
                            byte.is_pending ? " that may still be copied by thread " : " written by thread ",
                            byte.writer, place, byte.write_place);
        if (access == Access::read) {
            byte.add_read(now, place);
            continue;
        }
        if (race.empty() && byte.reading_warps != 0 && byte.read_races(now))
            race = describe(now, access, at, " read by thread ", byte.reader, place, byte.read_place);
        byte.set_write(now, access, place);
    }
    return race;
}

}  // namespace longhaul::kernels::cuda::emulation
