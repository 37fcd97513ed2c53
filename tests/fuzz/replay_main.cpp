// Runs a fuzz harness without a fuzzer, for the test suite: every seed file unchanged, then mutations of it that depend
// only on the file. Coverage-guided search is done with libFuzzer (README.md); this guards its findings against
// regressions.
//
//   NAME_replay MUTATIONS SEED_FILE…
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Bytes = std::vector<std::uint8_t>;

/// SplitMix64 (Steele et al. 2014).
class Numbers {
  public:
    explicit Numbers(std::uint64_t seed) : state_(seed) {}
    std::size_t below(std::size_t bound) { return bound == 0 ? 0 : next() % bound; }

  private:
    std::uint64_t next() {
        std::uint64_t z = state_ += 0x9e3779b97f4a7c15ULL;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
        return z ^ (z >> 31);
    }
    std::uint64_t state_;
};

/// Typical damage of corrupt and hostile files: flipped bits, lengths at their limits, pieces missing, duplicated or
/// moved.
void mutate(Bytes& bytes, Numbers& numbers) {
    constexpr std::uint8_t edges[] = {0x00, 0x01, 0x7f, 0x80, 0xff, '"', '{', '[', '-', '9'};
    const std::size_t at = numbers.below(bytes.size());
    const std::size_t count = 1 + numbers.below(std::min<std::size_t>(64, bytes.size() - at));
    const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    const auto end = begin + static_cast<std::ptrdiff_t>(std::min(count, bytes.size() - at));
    switch (numbers.below(6)) {
        case 0:
            if (begin != bytes.end()) *begin ^= static_cast<std::uint8_t>(1U << numbers.below(8));
            break;
        case 1:
            if (begin != bytes.end()) *begin = edges[numbers.below(std::size(edges))];
            break;
        case 2:
            std::fill(begin,
                      std::min(end, begin + static_cast<std::ptrdiff_t>(std::min<std::size_t>(8, bytes.size() - at))),
                      edges[numbers.below(std::size(edges))]);
            break;
        case 3:
            bytes.erase(begin, end);
            break;
        case 4: {
            const Bytes piece(begin, end);
            const auto to = static_cast<std::ptrdiff_t>(numbers.below(bytes.size() + 1));
            bytes.insert(bytes.begin() + to, piece.begin(), piece.end());
            break;
        }
        default:
            bytes.resize(numbers.below(bytes.size() + 1));
    }
}

}  // namespace

int main(int argc, char** argv) {
    const int mutations = argc > 1 ? std::atoi(argv[1]) : 0;
    int runs = 0;
    for (int i = 2; i < argc; ++i) {
        std::ifstream file(argv[i], std::ios::binary);
        const Bytes seed{std::istreambuf_iterator<char>(file), {}};
        if (seed.empty()) {
            std::fprintf(stderr, "%s: no such seed\n", argv[i]);
            return 1;
        }
        Numbers numbers(seed.size() * 1000003 + static_cast<std::uint64_t>(i));
        for (int m = 0; m <= mutations; ++m, ++runs) {
            Bytes bytes = seed;
            for (std::size_t changes = m == 0 ? 0 : 1 + numbers.below(4); changes > 0; --changes)
                mutate(bytes, numbers);
            LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
        }
    }
    std::printf("%d inputs of %d seeds\n", runs, argc - 2);
    return runs > 0 ? 0 : 1;
}
