#include "engine/model/safetensors.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "engine/error.hpp"
#include "engine/hash.hpp"
#include "engine/json.hpp"

namespace longhaul::engine {
namespace {

// File format: length of the header (8 bytes, little endian), the header (JSON), the bytes of the tensors.
constexpr std::int64_t length_bytes = 8;
constexpr std::int64_t max_header_bytes = 100000000;  // the limit of the reference implementation
constexpr int max_header_depth = 3;                   // {"tensor": {"shape": []}}
constexpr std::int64_t max_index_bytes = std::int64_t{1} << 28;
constexpr std::size_t max_shards = 10000;
constexpr std::string_view cut_short = "the file was cut short: fetch it again";

static_assert(std::endian::native == std::endian::little, "tensors are used as they lie in the file");

std::int64_t page_bytes() {
    static const std::int64_t bytes = ::sysconf(_SC_PAGESIZE);
    return bytes;
}

struct DtypeInfo {
    std::string_view name;
    int bits;
    TensorType type;
};

/// All types of the format. A file may contain tensors of types that we do not compute with; only those passed to
/// `require` must be supported.
constexpr std::array dtypes = {
    DtypeInfo{"BF16", 16, TensorType::bf16},
    DtypeInfo{"F16", 16, TensorType::f16},
    DtypeInfo{"F32", 32, TensorType::f32},
    DtypeInfo{"F64", 64, TensorType::other},
    DtypeInfo{"BOOL", 8, TensorType::other},
    DtypeInfo{"U8", 8, TensorType::other},
    DtypeInfo{"I8", 8, TensorType::i8},
    DtypeInfo{"U16", 16, TensorType::other},
    DtypeInfo{"I16", 16, TensorType::other},
    DtypeInfo{"U32", 32, TensorType::other},
    DtypeInfo{"I32", 32, TensorType::other},
    DtypeInfo{"U64", 64, TensorType::other},
    DtypeInfo{"I64", 64, TensorType::other},
    DtypeInfo{"C64", 64, TensorType::other},
    DtypeInfo{"F4", 4, TensorType::other},
    DtypeInfo{"F6_E2M3", 6, TensorType::other},
    DtypeInfo{"F8_E5M2", 8, TensorType::other},
    DtypeInfo{"F6_E3M2", 6, TensorType::other},
    DtypeInfo{"F8_E4M3", 8, TensorType::f8_e4m3},
    DtypeInfo{"F8_E8M0", 8, TensorType::other},
    DtypeInfo{"F8_E4M3FNUZ", 8, TensorType::other},
    DtypeInfo{"F8_E5M2FNUZ", 8, TensorType::other},
};

float half_to_float(std::uint16_t half) {
    const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
    const std::uint32_t exponent = half >> 10 & 31U;
    const std::uint32_t fraction = half & 0x3ffU;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000U | fraction << 13);
    if (exponent == 0)
        return std::copysign(static_cast<float>(fraction) * 0x1p-24F, std::bit_cast<float>(sign | 0x3f800000U));
    return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

/// A whole file mapped read-only. Views into it stay valid when the object is moved.
class MappedFile {
  public:
    explicit MappedFile(const std::filesystem::path& path) : name_(path.string()) {
        // Without O_NONBLOCK, opening a named pipe that has no writer would block forever.
        const int fd = ::open(name_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd < 0) throw InputError(name_, "", "a readable file", std::strerror(errno));
        const std::string problem = map(fd);
        ::close(fd);  // a mapping outlives its descriptor, so hundreds of shards keep none open
        if (!problem.empty()) throw InputError(name_, "", "a readable file", problem);
    }
    MappedFile(MappedFile&& other) noexcept
        : name_(std::move(other.name_)),
          data_(std::exchange(other.data_, nullptr)),
          size_(std::exchange(other.size_, 0)),
          changed_(other.changed_) {}
    MappedFile& operator=(MappedFile&&) = delete;
    ~MappedFile() {
        if (data_ != nullptr) ::munmap(data_, static_cast<std::size_t>(size_));
    }

    [[nodiscard]] const std::string& name() const { return name_; }
    [[nodiscard]] std::int64_t size() const { return size_; }
    [[nodiscard]] std::int64_t changed() const { return changed_; }  ///< ns since 1970
    [[nodiscard]] const std::byte* data() const { return static_cast<const std::byte*>(data_); }
    [[nodiscard]] std::string_view text() const {
        return {static_cast<const char*>(data_), static_cast<std::size_t>(size_)};
    }

  private:
    std::string map(int fd) {
        struct stat info {};
        if (::fstat(fd, &info) != 0) return std::strerror(errno);
        if (S_ISDIR(info.st_mode)) return "a folder";
        if (!S_ISREG(info.st_mode)) return "a device, pipe or socket";
        changed_ = info.st_mtim.tv_sec * std::int64_t{1000000000} + info.st_mtim.tv_nsec;
        if (info.st_size == 0) return {};  // an empty file cannot be mapped; later checks reject its size
        void* const data = ::mmap(nullptr, static_cast<std::size_t>(info.st_size), PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED) return std::strerror(errno);
        data_ = data;
        size_ = info.st_size;
        return {};
    }

    std::string name_;
    void* data_ = nullptr;
    std::int64_t size_ = 0;
    std::int64_t changed_ = 0;
};

/// One tensor of a header, with its byte range after the header.
struct Entry {
    std::string name;
    TensorView view;
    std::int64_t begin = 0;
    std::int64_t end = 0;
};

/// Reads and validates the header of one file.
class HeaderReader {
  public:
    explicit HeaderReader(const MappedFile& file) : file_(file) {}

    std::vector<Entry> read() {
        const std::string_view header = header_text();
        data_begin_ = length_bytes + static_cast<std::int64_t>(header.size());
        const Json json = parse_json(header, file_.name() + ": header", max_header_depth);
        if (!json.is_object()) throw InputError(file_.name(), "header", "an object", describe(json));
        std::vector<Entry> entries;
        entries.reserve(json.size());
        for (const auto& [name, fields] : json.items()) {
            if (name != "__metadata__") entries.push_back(entry(name, fields));
        }
        check_layout(entries);
        return entries;
    }

  private:
    [[nodiscard]] std::string_view header_text() const {
        if (is_git_lfs_pointer(file_.text())) {
            throw InputError(file_.name(), "", "safetensors", "a Git-LFS pointer", git_lfs_hint);
        }
        if (file_.size() < length_bytes) {
            const std::string expected = "at least " + std::to_string(length_bytes) + " bytes";
            throw InputError(file_.name(), "size", expected, std::to_string(file_.size()), cut_short);
        }
        std::uint64_t length = 0;
        std::memcpy(&length, file_.data(), sizeof length);
        const auto refuse = [&](std::int64_t limit, std::string_view what, std::string_view fix) {
            const std::string expected = "at most " + std::to_string(limit) + " bytes" + std::string(what);
            throw InputError(file_.name(), "header length@0", expected, std::to_string(length), fix);
        };
        if (length > max_header_bytes) refuse(max_header_bytes, "", "is this a safetensors file?");
        const std::int64_t rest = file_.size() - length_bytes;
        if (static_cast<std::int64_t>(length) > rest) refuse(rest, ", the rest of the file", cut_short);
        return file_.text().substr(length_bytes, length);
    }

    [[nodiscard]] Entry entry(const std::string& name, const Json& fields) const {
        const std::string within = printable(name, 200);
        if (!fields.is_object()) throw InputError(file_.name(), within, "an object", describe(fields));
        Entry result;
        result.name = name;
        result.view.file = file_.name();
        const DtypeInfo& dtype = read_dtype(fields, within);
        result.view.dtype = dtype.type;
        result.view.dtype_name = dtype.name;
        result.view.shape = numbers(fields, "shape", within);
        const std::vector<std::int64_t> offsets = numbers(fields, "data_offsets", within);
        if (offsets.size() != 2 || offsets[0] > offsets[1]) {
            throw InputError(file_.name(), within + ".data_offsets", "[begin, end], begin <= end", shape_text(offsets));
        }
        result.begin = offsets[0];
        result.end = offsets[1];
        result.view.num_bytes = result.end - result.begin;
        check_bytes(result, dtype.bits, within);
        return result;
    }

    [[nodiscard]] const DtypeInfo& read_dtype(const Json& fields, const std::string& within) const {
        const std::string name = get_string_or(fields, "dtype", "", file_.name(), within);
        const auto named = [&](const DtypeInfo& dtype) { return dtype.name == name; };
        const auto* const found = std::find_if(dtypes.begin(), dtypes.end(), named);
        if (found == dtypes.end()) {
            throw InputError(file_.name(), within + ".dtype", "a type of safetensors, such as \"BF16\"",
                             describe(Json(name)));
        }
        return *found;
    }

    [[nodiscard]] std::vector<std::int64_t> numbers(const Json& fields, const char* key,
                                                    const std::string& within) const {
        const Json* list = find_member(fields, key, file_.name(), within);
        if (list == nullptr || !list->is_array()) {
            throw InputError(file_.name(), within + "." + key, "an array",
                             list == nullptr ? "nothing" : describe(*list));
        }
        std::vector<std::int64_t> result;
        result.reserve(list->size());
        for (const Json& item : *list) {
            if (!item.is_number_unsigned() || !std::in_range<std::int64_t>(item.get<std::uint64_t>())) {
                throw InputError(file_.name(), within + "." + key, "integers from 0 to 2^63-1", describe(item));
            }
            result.push_back(item.get<std::int64_t>());
        }
        return result;
    }

    void check_bytes(const Entry& entry, int bits, const std::string& within) const {
        std::int64_t total_bits = bits;
        for (const std::int64_t size : entry.view.shape) {
            if (__builtin_mul_overflow(total_bits, size, &total_bits)) {
                throw InputError(file_.name(), within + ".shape", "fewer than 2^63 bits", shape_text(entry.view.shape));
            }
        }
        if (total_bits % 8 != 0 || total_bits / 8 != entry.view.num_bytes) {
            const std::string expected = std::to_string(total_bits / 8) + " bytes for " + entry.view.dtype_name + " " +
                                         shape_text(entry.view.shape);
            throw InputError(file_.name(), within + ".data_offsets", expected, std::to_string(entry.view.num_bytes));
        }
    }

    /// The tensors must be contiguous, without overlap or hole, and fill the file: then it holds no hidden data, and
    /// nothing is read twice.
    void check_layout(std::vector<Entry>& entries) const {
        std::vector<Entry*> order;
        order.reserve(entries.size());
        for (Entry& entry : entries) order.push_back(&entry);
        std::sort(order.begin(), order.end(), [](const Entry* a, const Entry* b) {
            return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
        });
        std::int64_t end = 0;
        const Entry* before = nullptr;
        for (const Entry* entry : order) {
            if (entry->begin != end) {
                const std::string after = before == nullptr ? "the header" : describe(Json(before->name));
                throw InputError(file_.name(), printable(entry->name, 200) + ".data_offsets",
                                 "to begin at " + std::to_string(end) + ", after " + after,
                                 std::to_string(entry->begin));
            }
            end = entry->end;
            before = entry;
        }
        const std::int64_t have = file_.size() - data_begin_;
        if (have != end) {
            const std::string expected = std::to_string(end) + " bytes of tensors after the header";
            throw InputError(file_.name(), "size", expected, std::to_string(have), have < end ? cut_short : "");
        }
        // Only now are all offsets known to be inside the file.
        for (Entry& entry : entries) entry.view.data = file_.data() + data_begin_ + entry.begin;
    }

    const MappedFile& file_;
    std::int64_t data_begin_ = 0;
};

/// Contents of an index file: the shards, and the shard of each tensor.
struct Index {
    std::map<std::string, std::string> shard_of;
    std::set<std::string> shards;
};

Index read_index(const std::filesystem::path& path) {
    const std::string file = path.string();
    const Json json = read_json(path, max_index_bytes, 8);
    const Json* weight_map = find_member(json, "weight_map", file);
    if (weight_map == nullptr || !weight_map->is_object()) {
        throw InputError(file, "weight_map", "an object", weight_map == nullptr ? "nothing" : describe(*weight_map));
    }
    Index index;
    for (const auto& [tensor, shard] : weight_map->items()) {
        const std::string* name = shard.get_ptr<const std::string*>();
        // A name with a slash could refer to any file of the user.
        const bool plain = name != nullptr && !name->empty() && *name != "." && *name != ".." &&
                           name->find('/') == std::string::npos && name->find('\0') == std::string::npos;
        if (!plain) {
            throw InputError(file, "weight_map." + printable(tensor, 200), "the name of a file in this folder",
                             describe(shard));
        }
        index.shard_of.emplace(tensor, *name);
        index.shards.insert(*name);
    }
    if (index.shards.empty()) throw InputError(file, "weight_map", "at least one tensor", "none");
    if (index.shards.size() > max_shards) {
        throw InputError(file, "weight_map", "at most " + std::to_string(max_shards) + " files",
                         std::to_string(index.shards.size()));
    }
    return index;
}

bool present(const std::filesystem::path& path) {
    std::error_code ignored;
    return std::filesystem::exists(path, ignored);
}

[[noreturn]] void refuse_folder_without_weights(const std::filesystem::path& folder) {
    const std::string expected = "model.safetensors or model.safetensors.index.json";
    std::error_code ignored;
    if (!std::filesystem::is_directory(folder, ignored)) {
        throw InputError(folder.string(), "", "a model folder", present(folder) ? "a file" : "nothing of that name");
    }
    const std::pair<const char*, const char*> others[] = {
        {"pytorch_model.bin", "jobs/convert_checkpoint.py FOLDER writes them"},
        {"pytorch_model.bin.index.json", "jobs/convert_checkpoint.py FOLDER writes them"},
        {"consolidated.00.pth", "save the model as safetensors (transformers: save_pretrained)"},
    };
    for (const auto& [other, fix] : others) {
        if (present(folder / other)) throw InputError(folder.string(), "", expected, std::string("only ") + other, fix);
    }
    throw InputError(folder.string(), "", expected, "neither");
}

}  // namespace

struct SafetensorsFolder::State {
    std::string label;
    std::vector<MappedFile> files;
    std::map<std::string, TensorView> tensors;

    void add_file(const std::filesystem::path& path) {
        const MappedFile& file = files.emplace_back(path);
        for (Entry& entry : HeaderReader(file).read()) {
            const auto [place, fresh] = tensors.try_emplace(std::move(entry.name), std::move(entry.view));
            if (!fresh) {
                throw InputError(file.name(), printable(place->first, 200), "every tensor in one file",
                                 "it also in " + place->second.file);
            }
        }
    }

    /// An incomplete download lacks shards: report this before the first shard is opened.
    void check_shards(const Index& index, const std::filesystem::path& folder) const {
        std::vector<std::string> missing;
        for (const std::string& shard : index.shards) {
            if (!present(folder / shard)) missing.push_back(printable(shard, 200));
        }
        if (missing.empty()) return;
        const std::string others = missing.size() == 1 ? "" : ", nor " + std::to_string(missing.size() - 1) + " more";
        throw InputError(label, "weight_map", "the file " + missing.front() + " beside it", "no such file" + others,
                         "fetch the whole folder again");
    }

    /// Models of OPT and GPT-2 were saved without their heads, so that names of their tensors lack a prefix; adds it.
    void complete_names() {
        const bool is_gpt2 = tensors.contains("wte.weight");
        std::vector<std::pair<std::string, std::string>> short_names;
        for (const auto& [name, view] : tensors) {
            const auto begins = [&name = name](const char* with) { return name.starts_with(with); };
            if (begins("decoder.")) short_names.emplace_back(name, "model." + name);
            if (is_gpt2 && (begins("wte.") || begins("wpe.") || begins("h.") || begins("ln_f.")))
                short_names.emplace_back(name, "transformer." + name);
        }
        for (const auto& [name, whole] : short_names) {
            if (tensors.contains(whole)) continue;
            auto node = tensors.extract(name);
            node.key() = whole;
            tensors.insert(std::move(node));
        }
    }

    void add_indexed(const std::filesystem::path& folder) {
        const Index index = read_index(label);
        check_shards(index, folder);
        for (const std::string& shard : index.shards) add_file(folder / shard);
        for (const auto& [tensor, shard] : index.shard_of) {
            const auto found = tensors.find(tensor);
            if (found == tensors.end() || found->second.file != (folder / shard).string()) {
                throw InputError(label, "weight_map." + printable(tensor, 200),
                                 "this tensor in " + printable(shard, 200),
                                 found == tensors.end() ? "it nowhere" : "it in " + found->second.file);
            }
        }
    }
};

SafetensorsFolder SafetensorsFolder::open(const std::filesystem::path& folder) {
    auto state = std::make_unique<State>();
    const std::filesystem::path single = folder / "model.safetensors";
    const std::filesystem::path index = folder / "model.safetensors.index.json";
    if (present(single)) {  // if both exist, Hugging Face also uses this one
        state->label = single.string();
        state->add_file(single);
    } else if (present(index)) {
        state->label = index.string();
        state->add_indexed(folder);
    } else {
        refuse_folder_without_weights(folder);
    }
    state->complete_names();
    return SafetensorsFolder(std::move(state));
}

SafetensorsFolder SafetensorsFolder::open_file(const std::filesystem::path& file) {
    auto state = std::make_unique<State>();
    state->label = file.string();
    state->add_file(file);
    return SafetensorsFolder(std::move(state));
}

SafetensorsFolder::SafetensorsFolder(std::unique_ptr<State> state) : state_(std::move(state)) {}
SafetensorsFolder::SafetensorsFolder(SafetensorsFolder&&) noexcept = default;
SafetensorsFolder& SafetensorsFolder::operator=(SafetensorsFolder&&) noexcept = default;
SafetensorsFolder::~SafetensorsFolder() = default;

const std::map<std::string, TensorView>& SafetensorsFolder::tensors() const {
    return state_->tensors;
}

const std::string& SafetensorsFolder::label() const {
    return state_->label;
}

bool SafetensorsFolder::contains(const std::string& name) const {
    return state_->tensors.contains(name);
}

const TensorView& SafetensorsFolder::require(const std::string& name, const std::vector<std::int64_t>& shape) const {
    const TensorView& view = require_shape(name, shape);
    if (!is_float(view.dtype)) throw InputError(view.file, name, "BF16, F16 or F32", view.dtype_name);
    return view;
}

const TensorView& SafetensorsFolder::require_shape(const std::string& name,
                                                   const std::vector<std::int64_t>& shape) const {
    const auto found = state_->tensors.find(name);
    if (found == state_->tensors.end()) {
        throw InputError(state_->label, name, "a tensor of shape " + shape_text(shape), "none of that name");
    }
    const TensorView& view = found->second;
    if (view.shape != shape) {
        throw InputError(view.file, name, "shape " + shape_text(shape) + ", as config.json says",
                         shape_text(view.shape));
    }
    return view;
}

void SafetensorsFolder::drop_pages(const std::byte* begin, std::int64_t num_bytes) {
    if (num_bytes == 0) return;
    // Drops whole pages around the bytes. Pages shared with a neighbouring tensor are read from the file again when
    // needed.
    const std::int64_t before = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(begin)) % page_bytes();
    auto* const first = const_cast<std::byte*>(begin) - before;  // madvise takes a non-const pointer but does not write
    ::madvise(first, static_cast<std::size_t>(before + num_bytes), MADV_DONTNEED);  // advice: may fail
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
    std::string text = "[";
    for (std::size_t i = 0; i < shape.size(); ++i) {
        if (i == 8) return text + ", ...]";
        if (i > 0) text += ", ";
        text += std::to_string(shape[i]);
    }
    return text + "]";
}

float element_of(const TensorView& tensor, std::int64_t i) {
    if (tensor.dtype == TensorType::f32) {
        float value;
        std::memcpy(&value, tensor.data + i * 4, sizeof value);
        return value;
    }
    std::uint16_t bits;
    std::memcpy(&bits, tensor.data + i * 2, sizeof bits);
    if (tensor.dtype == TensorType::f16) return half_to_float(bits);
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::vector<std::int64_t> integers_of(const TensorView& tensor, const std::string& name) {
    if (tensor.dtype_name != "I64" || tensor.shape.size() != 1)
        throw InputError(tensor.file, name, "one row of I64",
                         tensor.dtype_name + " of " + std::to_string(tensor.shape.size()) + " dimensions");
    std::vector<std::int64_t> values(static_cast<std::size_t>(tensor.shape.front()));
    if (!values.empty()) std::memcpy(values.data(), tensor.data, values.size() * sizeof values.front());
    return values;
}

std::int64_t SafetensorsFolder::last_change() const {
    std::int64_t last = 0;
    for (const MappedFile& file : state_->files) last = std::max(last, file.changed());
    return last;
}

std::uint64_t SafetensorsFolder::fingerprint() const {
    constexpr std::int64_t sample_bytes = 4096;
    Hash hash;
    const auto add_number = [&](std::uint64_t number) { hash.add(&number, sizeof number); };
    const auto add_text = [&](const std::string& text) {
        add_number(text.size());  // lengths distinguish ("ab", "c") from ("a", "bc")
        hash.add(text);
    };
    for (const auto& [name, view] : state_->tensors) {
        add_text(name);
        add_text(view.dtype_name);
        add_number(view.shape.size());
        for (const std::int64_t size : view.shape) add_number(static_cast<std::uint64_t>(size));
        // A tensor with the matrices of all experts counts as so many.
        const bool is_stack = view.shape.size() >= 3 && view.shape.front() > 0 && name.find(".experts.") != name.npos;
        const std::int64_t whole = is_stack ? view.num_bytes / view.shape.front() : view.num_bytes;
        const std::int64_t sample = std::min(sample_bytes, whole);
        for (std::int64_t at = 0; at == 0 || at < view.num_bytes; at += whole) {
            hash.add(view.data + at, static_cast<std::size_t>(sample));
            hash.add(view.data + at + (whole - sample), static_cast<std::size_t>(sample));
            if (whole == 0) break;
        }
    }
    return hash.value();
}

}  // namespace longhaul::engine
