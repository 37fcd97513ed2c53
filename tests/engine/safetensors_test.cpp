// Safetensors folders, valid and malformed: one row per case, with the expected message.
#include "engine/model/safetensors.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "engine/error.hpp"

namespace longhaul::engine {
namespace {

class Folder {
  public:
    Folder() {
        static int count = 0;
        const std::string name = "longhaul-safetensors-" + std::to_string(::getpid()) + "-" + std::to_string(count++);
        path_ = std::filesystem::temp_directory_path() / name;
        std::filesystem::create_directories(path_);
    }
    ~Folder() { std::filesystem::remove_all(path_); }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;

    [[nodiscard]] const std::filesystem::path& path() const { return path_; }
    void write(const std::string& name, const std::string& bytes) const {
        std::ofstream(path_ / name, std::ios::binary) << bytes;
    }

    /// The error of `action`, without the folder's name.
    [[nodiscard]] std::string complaint(const std::function<void()>& action) const {
        try {
            action();
        } catch (const InputError& error) {
            std::string line = error.what();
            const std::string prefix = path_.string() + "/";
            for (std::size_t at = line.find(prefix); at != std::string::npos; at = line.find(prefix)) {
                line.erase(at, prefix.size());
            }
            return line;
        }
        return "(none)";
    }
    [[nodiscard]] std::string complaint() const {
        return complaint([this] { SafetensorsFolder::open(path_); });
    }

  private:
    std::filesystem::path path_;
};

std::string length_prefix(std::uint64_t length) {
    std::string bytes(8, '\0');
    std::memcpy(bytes.data(), &length, 8);
    return bytes;
}

std::string file_of(const std::string& header, const std::string& data) {
    return length_prefix(header.size()) + header + data;
}

std::string one_tensor(const std::string& name, const std::string& data) {
    return file_of("{\"" + name + R"(": {"dtype": "U8", "shape": [)" + std::to_string(data.size()) +
                       R"(], "data_offsets": [0, )" + std::to_string(data.size()) + "]}}",
                   data);
}

TEST(Safetensors, OneFile) {
    const Folder folder;
    const std::string header = R"({"__metadata__": {"format": "pt"},
        "w": {"dtype": "F32", "shape": [2, 1], "data_offsets": [4, 12]},
        "empty": {"dtype": "F32", "shape": [0, 5], "data_offsets": [4, 4]},
        "h": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]},
        "scalar": {"dtype": "I64", "shape": [], "data_offsets": [12, 20]}}   )";
    folder.write("model.safetensors", file_of(header, "hhhhabcdABCD12345678"));
    SafetensorsFolder opened = SafetensorsFolder::open(folder.path());
    const SafetensorsFolder weights = std::move(opened);
    EXPECT_EQ(weights.tensors().size(), 4U);
    EXPECT_EQ(weights.label(), (folder.path() / "model.safetensors").string());
    const TensorView& w = weights.require("w", {2, 1});
    EXPECT_EQ(w.dtype, TensorType::f32);
    EXPECT_EQ(w.dtype_name, "F32");
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(w.data), 8), "abcdABCD");
    EXPECT_EQ(weights.require("h", {2}).dtype, TensorType::bf16);
    EXPECT_EQ(weights.require("empty", {0, 5}).num_bytes, 0);
    EXPECT_TRUE(weights.contains("scalar"));
    EXPECT_FALSE(weights.contains("__metadata__"));
    for (const auto& [name, view] : weights.tensors()) weights.drop_pages(view.data, view.num_bytes);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(w.data), 8), "abcdABCD");

    const auto asked = [&](const char* name, const std::vector<std::int64_t>& shape) {
        return folder.complaint([&] { (void)weights.require(name, shape); });
    };
    EXPECT_EQ(asked("w", {1, 2}), "model.safetensors: w: expected shape [1, 2], as config.json says, got [2, 1]");
    EXPECT_EQ(asked("v", {3}), "model.safetensors: v: expected a tensor of shape [3], got none of that name");
    EXPECT_EQ(asked("scalar", {}), "model.safetensors: scalar: expected BF16, F16 or F32, got I64");
}

TEST(Safetensors, ShardsGiveTheSameModelAsOneFile) {
    const std::string ab = R"({"a": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
                               "b": {"dtype": "U8", "shape": [2], "data_offsets": [3, 5]}})";
    const Folder single, sharded, other;
    single.write("model.safetensors", file_of(ab, "AAABB"));
    other.write("model.safetensors", file_of(ab, "AAABC"));
    sharded.write("x.safetensors", one_tensor("b", "BB"));
    sharded.write("y.safetensors", one_tensor("a", "AAA"));
    sharded.write("model.safetensors.index.json",
                  R"({"metadata": {"total_size": 5}, "weight_map": {"a": "y.safetensors", "b": "x.safetensors"}})");
    const std::uint64_t identity = SafetensorsFolder::open(single.path()).fingerprint();
    EXPECT_EQ(SafetensorsFolder::open(sharded.path()).fingerprint(), identity);
    EXPECT_NE(SafetensorsFolder::open(other.path()).fingerprint(), identity);
    // A fixed number, because run folders store it.
    EXPECT_EQ(identity, 11570439941464990697U);
}

struct BadFile {
    const char* what;
    std::string bytes;
    std::string complaint;  // after "model.safetensors: "
};

std::string tensor(const std::string& fields) {
    return R"({"w": )" + fields + "}";
}

std::string two(const std::string& a, const std::string& b) {
    return R"({"a": {"dtype": "U8", "shape": [4], "data_offsets": )" + a +
           R"(}, "b": {"dtype": "U8", "shape": [4], "data_offsets": )" + b + "}}";
}

std::vector<BadFile> bad_files() {
    const std::string good = R"({"w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})";
    const std::string cut = "; the file was cut short: fetch it again";
    const std::string whole = "expected integers from 0 to 2^63-1, got ";
    return {
        // Framing.
        {"empty", "", "size: expected at least 8 bytes, got 0" + cut},
        {"7 bytes", "1234567", "size: expected at least 8 bytes, got 7" + cut},
        {"no header", length_prefix(0), "header: @0: expected '[', '{', or a literal, got end of input"},
        {"length 2^64-1", length_prefix(~std::uint64_t{0}) + "{}",
         "header length@0: expected at most 100000000 bytes, got 18446744073709551615; is this a safetensors file?"},
        {"header above 100 MB", length_prefix(100000001) + "{}",
         "header length@0: expected at most 100000000 bytes, got 100000001; is this a safetensors file?"},
        {"header beyond the file", length_prefix(3) + "{}",
         "header length@0: expected at most 2 bytes, the rest of the file, got 3" + cut},
        {"Git-LFS pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
         "expected safetensors, got a Git-LFS pointer; fetch the file itself: git lfs pull"},
        {"one byte short", file_of(good, "1234567"), "size: expected 8 bytes of tensors after the header, got 7" + cut},
        {"trailing bytes", file_of(good, "123456789"), "size: expected 8 bytes of tensors after the header, got 9"},
        // The header as JSON.
        {"not UTF-8", file_of("{\"\xFF\": 1}", ""),
         R"(header: @2: expected string literal, got invalid string: ill-formed UTF-8 byte at the end of '"\xff')"},
        {"not an object", file_of("[1]", ""), "header: expected an object, got an array of 1"},
        {"duplicate key", file_of(R"({"w": {}, "w": {}})", ""),
         "header: w: expected every key once, got this key twice"},
        {"deep nesting", file_of(R"({"w": {"shape": [[1]]}})", ""),
         "header: w.shape[0]: expected at most 3 levels of nesting, got more"},
        {"NUL", file_of(std::string("{}\0", 3), ""), "header: @2: expected JSON, got a NUL byte"},
        // Fields.
        {"tensor no object", file_of(tensor("7"), ""), "w: expected an object, got 7"},
        {"no type", file_of(tensor(R"({"shape": [], "data_offsets": [0, 0]})"), ""),
         R"(w.dtype: expected a type of safetensors, such as "BF16", got "")"},
        {"unknown type", file_of(tensor(R"({"dtype": "Q4_K", "shape": [], "data_offsets": [0, 0]})"), ""),
         R"(w.dtype: expected a type of safetensors, such as "BF16", got "Q4_K")"},
        {"no shape", file_of(tensor(R"({"dtype": "F32", "data_offsets": [0, 4]})"), "1234"),
         "w.shape: expected an array, got nothing"},
        {"negative size", file_of(tensor(R"({"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]})"), "1234"),
         "w.shape: " + whole + "-1"},
        {"fractional size", file_of(tensor(R"({"dtype": "F32", "shape": [1.5], "data_offsets": [0, 4]})"), "1234"),
         "w.shape: " + whole + "1.5"},
        {"size 2^64-1",
         file_of(tensor(R"({"dtype": "U8", "shape": [18446744073709551615], "data_offsets": [0, 1]})"), "1"),
         "w.shape: " + whole + "18446744073709551615"},
        {"product wraps to 0",
         file_of(tensor(R"({"dtype": "U8", "shape": [4294967296, 4294967296], "data_offsets": [0, 0]})"), ""),
         "w.shape: expected fewer than 2^63 bits, got [4294967296, 4294967296]"},
        {"product wraps to 4",
         file_of(tensor(R"({"dtype": "U8", "shape": [4611686018427387905, 4], "data_offsets": [0, 4]})"), "1234"),
         "w.shape: expected fewer than 2^63 bits, got [4611686018427387905, 4]"},
        {"bytes unlike shape", file_of(tensor(R"({"dtype": "F32", "shape": [3], "data_offsets": [0, 8]})"), "12345678"),
         "w.data_offsets: expected 12 bytes for F32 [3], got 8"},
        {"begin > end", file_of(tensor(R"({"dtype": "F32", "shape": [0], "data_offsets": [8, 4]})"), "12345678"),
         "w.data_offsets: expected [begin, end], begin <= end, got [8, 4]"},
        {"one offset", file_of(tensor(R"({"dtype": "F32", "shape": [0], "data_offsets": [0]})"), ""),
         "w.data_offsets: expected [begin, end], begin <= end, got [0]"},
        {"negative offset", file_of(tensor(R"({"dtype": "U8", "shape": [1], "data_offsets": [-1, 0]})"), ""),
         "w.data_offsets: " + whole + "-1"},
        {"fractional offset", file_of(tensor(R"({"dtype": "U8", "shape": [1], "data_offsets": [0, 1.0]})"), "1"),
         "w.data_offsets: " + whole + "1.0"},
        {"beyond the file",
         file_of(tensor(R"({"dtype": "U8", "shape": [1000000000000], "data_offsets": [0, 1000000000000]})"), "1"),
         "size: expected 1000000000000 bytes of tensors after the header, got 1" + cut},
        // Tensor layout.
        {"overlap", file_of(two("[0, 4]", "[2, 6]"), "123456"),
         R"(b.data_offsets: expected to begin at 4, after "a", got 2)"},
        {"the same bytes twice", file_of(two("[0, 4]", "[0, 4]"), "1234"),
         R"(b.data_offsets: expected to begin at 4, after "a", got 0)"},
        {"hole", file_of(two("[0, 4]", "[5, 9]"), "123456789"),
         R"(b.data_offsets: expected to begin at 4, after "a", got 5)"},
        {"hole at the start", file_of(two("[5, 9]", "[1, 5]"), "123456789"),
         "b.data_offsets: expected to begin at 0, after the header, got 1"},
    };
}

TEST(Safetensors, BadFilesAreRefusedNamingTheField) {
    for (const BadFile& row : bad_files()) {
        const Folder folder;
        folder.write("model.safetensors", row.bytes);
        EXPECT_EQ(folder.complaint(), "model.safetensors: " + row.complaint) << row.what;
    }
}

TEST(Safetensors, BadFolders) {
    const Folder folder;
    EXPECT_EQ(folder.complaint([&] { SafetensorsFolder::open(folder.path() / "absent"); }),
              "absent: expected a model folder, got nothing of that name");
    const std::string neither = folder.path().string() + ": expected model.safetensors or model.safetensors.index.json";
    EXPECT_EQ(folder.complaint(), neither + ", got neither");
    folder.write("pytorch_model.bin", "PK");
    EXPECT_EQ(folder.complaint(),
              neither + ", got only pytorch_model.bin; jobs/convert_checkpoint.py FOLDER writes them");
    const Folder shards;
    shards.write("pytorch_model.bin.index.json", "{}");
    EXPECT_EQ(shards.complaint(), shards.path().string() +
                                      ": expected model.safetensors or model.safetensors.index.json, got only "
                                      "pytorch_model.bin.index.json; jobs/convert_checkpoint.py FOLDER writes them");
    const Folder original;
    original.write("consolidated.00.pth", "PK");
    EXPECT_NE(original.complaint().find("save_pretrained"), std::string::npos);
    EXPECT_EQ(folder.complaint([&] { SafetensorsFolder::open(folder.path() / "pytorch_model.bin"); }),
              "pytorch_model.bin: expected a model folder, got a file");
    std::filesystem::create_directory(folder.path() / "model.safetensors");
    EXPECT_EQ(folder.complaint(), "model.safetensors: expected a readable file, got a folder");
}

TEST(Safetensors, BadIndexes) {
    const std::string index = "model.safetensors.index.json: ";
    const std::string escape = ": expected the name of a file in this folder, got ";
    struct Case {
        std::string weight_map;
        std::string complaint;
    };
    const Case cases[] = {
        {R"({"a": "../x"})", index + "weight_map.a" + escape + R"("../x")"},
        {R"({"a": "/etc/passwd"})", index + "weight_map.a" + escape + R"("/etc/passwd")"},
        {R"({"a": ".."})", index + "weight_map.a" + escape + R"("..")"},
        {R"({"a": ""})", index + "weight_map.a" + escape + R"("")"},
        {R"({"a": "1.safetensors\u0000"})", index + "weight_map.a" + escape + R"("1.safetensors\x00")"},
        {R"({"a": 1})", index + "weight_map.a" + escape + "1"},
        {"[]", index + "weight_map: expected an object, got an array of 0"},
        {"null", index + "weight_map: expected an object, got nothing"},
        {"{}", index + "weight_map: expected at least one tensor, got none"},
        {R"({"a": "1.safetensors", "a": "2.safetensors"})",
         index + "weight_map.a: expected every key once, got this key twice"},
        {R"({"a": "1.safetensors", "b": "3.safetensors"})",
         index +
             "weight_map: expected the file 3.safetensors beside it, got no such file; fetch the whole folder again"},
        {R"({"a": "1.safetensors", "c": "1.safetensors"})",
         index + "weight_map.c: expected this tensor in 1.safetensors, got it nowhere"},
        {R"({"a": "1.safetensors", "b": "1.safetensors", "c": "2.safetensors"})",
         index + "weight_map.b: expected this tensor in 1.safetensors, got it in 2.safetensors"},
        {R"({"a": "1.safetensors", "b": "copy.safetensors"})",
         "copy.safetensors: a: expected every tensor in one file, got it also in 1.safetensors"},
    };
    for (const Case& row : cases) {
        const Folder folder;
        folder.write("1.safetensors", one_tensor("a", "AAA"));
        folder.write("copy.safetensors", one_tensor("a", "AAA"));
        folder.write("2.safetensors", file_of(R"({"b": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
                                                  "c": {"dtype": "U8", "shape": [1], "data_offsets": [1, 2]}})",
                                              "BC"));
        folder.write("model.safetensors.index.json", R"({"weight_map": )" + row.weight_map + "}");
        EXPECT_EQ(folder.complaint(), row.complaint) << row.weight_map;
    }
}

TEST(Safetensors, ManyTensorsAreReadQuickly) {
    const Folder folder;
    const int count = 100000;
    std::string header = "{";
    for (int i = 0; i < count; ++i) {
        const std::string begin = std::to_string(2 * i), end = std::to_string(2 * i + 2);
        header.append(i > 0 ? "," : "").append("\"layer.").append(std::to_string(i));
        header.append(R"(":{"dtype":"BF16","shape":[1,1],"data_offsets":[)").append(begin).append(",").append(end);
        header.append("]}");
    }
    folder.write("model.safetensors", file_of(header + "}", std::string(2 * count, 'x')));
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(SafetensorsFolder::open(folder.path()).tensors().size(), static_cast<std::size_t>(count));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));  // 0.3 s; bounds quadratic time
}

}  // namespace
}  // namespace longhaul::engine
