// Checkpoint files with correct checksums but foreign contents, crafted with HDF5 itself or with columns that no round
// writes. The checksum passes, so the structure check must refuse them and name the file and the dataset.
#include <hdf5.h>

#include <cstring>
#include <limits>

#include "engine/checkpoint/commit.hpp"
#include "engine/checkpoint/commit_file.hpp"
#include "engine/checkpoint/file_name.hpp"
#include "engine/checkpoint/identity.hpp"
#include "engine/checkpoint/kv_file.hpp"
#include "engine/checkpoint/store.hpp"
#include "tests/engine/checkpoint_fixture.hpp"

namespace longhaul::engine {
namespace {

using Edit = std::function<void(hid_t file)>;

struct Case {
    const char* name;
    Edit edit;
    const char* expected;
};

void remove_link(hid_t file, const std::string& path) {
    ASSERT_GE(H5Ldelete(file, path.c_str(), H5P_DEFAULT), 0) << path;
}

/// Replaces a dataset. `creation` may be H5P_DEFAULT; if `values` is nullptr nothing is written.
void replace(hid_t file, const std::string& path, hid_t type, const std::vector<hsize_t>& dims, hid_t creation,
             const void* values, hid_t values_type) {
    remove_link(file, path);
    std::vector<hsize_t> max_dims = dims;
    if (creation != H5P_DEFAULT && H5Pget_layout(creation) == H5D_CHUNKED) max_dims.assign(dims.size(), H5S_UNLIMITED);
    const hid_t space = H5Screate_simple(static_cast<int>(dims.size()), dims.data(), max_dims.data());
    const hid_t dataset = H5Dcreate2(file, path.c_str(), type, space, H5P_DEFAULT, creation, H5P_DEFAULT);
    ASSERT_GE(dataset, 0) << path;
    if (values != nullptr) {
        ASSERT_GE(H5Dwrite(dataset, values_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values), 0);
    }
    H5Dclose(dataset);
    H5Sclose(space);
}

hid_t chunked(const std::vector<hsize_t>& chunk) {
    const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(creation, static_cast<int>(chunk.size()), chunk.data());
    return creation;
}

hid_t chunked_with_fletcher(const std::vector<hsize_t>& chunk) {
    const hid_t creation = chunked(chunk);
    H5Pset_fletcher32(creation);
    return creation;
}

/// An int64 column in the format's layout, with the given values.
Edit column(const char* path, std::vector<std::int64_t> values) {
    return [=](hid_t file) {
        const hid_t creation = values.empty() ? H5P_DEFAULT : chunked_with_fletcher({values.size()});
        replace(file, path, H5T_STD_I64LE, {values.size()}, creation, values.data(), H5T_NATIVE_INT64);
    };
}

/// The bytes of an HDF5 file after `edit`.
std::vector<char> edited(const std::filesystem::path& scratch, const std::vector<char>& bytes, const Edit& edit) {
    write_bytes(scratch, bytes);
    const hid_t file = H5Fopen(scratch.c_str(), H5F_ACC_RDWR, H5P_DEFAULT);
    EXPECT_GE(file, 0);
    edit(file);
    H5Fclose(file);
    std::vector<char> result = read_bytes(scratch);
    std::filesystem::remove(scratch);
    return result;
}

/// HDF5 data followed by a correct trailer.
std::vector<char> sealed(const std::vector<char>& image) {
    hdf5::Bytes bytes(image.size() + detail::trailer_bytes);
    std::memcpy(bytes.data.get(), image.data(), image.size());
    detail::seal(bytes);
    const char* begin = reinterpret_cast<const char*>(bytes.data.get());
    return {begin, begin + bytes.size};
}

std::vector<Case> structural_cases(const std::string& path, hid_t type, const std::vector<hsize_t>& dims) {
    hsize_t elements = 1;
    for (const hsize_t dim : dims) elements *= dim;
    const std::vector<char> zeros(elements * 8);
    const auto put = [=](hid_t stored, const std::vector<hsize_t>& shape, const std::function<hid_t()>& creation,
                         bool with_values) {
        return [=](hid_t file) {
            replace(file, path, stored, shape, creation(), with_values ? zeros.data() : nullptr, stored);
        };
    };
    const auto good_chunks = [=] { return chunked_with_fletcher(dims); };
    std::vector<hsize_t> absurd(dims.size(), hsize_t{1} << 40);
    std::vector<hsize_t> wide(dims.size(), 1);
    wide[0] = hsize_t{1} << 28;
    std::vector<hsize_t> flat_rank = dims;
    flat_rank.push_back(1);
    return {
        {"external link",
         [=](hid_t file) {
             remove_link(file, path);
             H5Lcreate_external("/etc/passwd", "/x", file, path.c_str(), H5P_DEFAULT, H5P_DEFAULT);
         },
         ": expected data in this file, got a link that may lead out of it"},
        {"soft link",
         [=](hid_t file) {
             remove_link(file, path);
             H5Lcreate_soft("/elsewhere", file, path.c_str(), H5P_DEFAULT, H5P_DEFAULT);
         },
         ": expected data in this file, got a link that may lead out of it"},
        {"virtual dataset",
         put(
             type, dims,
             [=] {
                 const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
                 const hid_t space = H5Screate_simple(static_cast<int>(dims.size()), dims.data(), nullptr);
                 H5Pset_virtual(creation, space, "/etc/passwd", "/x", space);
                 return creation;
             },
             false),
         ": expected data in this file, got a virtual dataset"},
        {"external storage",
         put(
             type, dims,
             [=] {
                 const hid_t creation = H5Pcreate(H5P_DATASET_CREATE);
                 H5Pset_external(creation, "/etc/passwd", 0, H5F_UNLIMITED);
                 return creation;
             },
             false),
         ": expected data in this file, got external storage"},
        {"deflate",
         put(
             type, dims,
             [=] {
                 const hid_t creation = chunked(dims);
                 H5Pset_deflate(creation, 6);
                 return creation;
             },
             true),
         ": expected the Fletcher32 filter alone, got other filters"},
        {"shuffle and Fletcher32",
         put(
             type, dims,
             [=] {
                 const hid_t creation = chunked(dims);
                 H5Pset_shuffle(creation);
                 H5Pset_fletcher32(creation);
                 return creation;
             },
             true),
         ": expected the Fletcher32 filter alone, got other filters"},
        {"no filter",
         put(
             type, dims, [=] { return chunked(dims); }, true),
         ": expected the Fletcher32 filter alone, got other filters"},
        {"contiguous",
         put(
             type, dims, [] { return H5Pcreate(H5P_DATASET_CREATE); }, true),
         ": expected chunked storage, got another layout"},
        {"wrong type", put(H5T_IEEE_F64LE, dims, good_chunks, true), ", got another type"},
        {"wrong byte order", put(H5T_STD_U32BE, dims, good_chunks, true), ", got another type"},
        {"wrong rank",
         put(
             type, flat_rank, [=] { return chunked_with_fletcher(flat_rank); }, true),
         " dimensions, got "},
        {"absurd shape", put(type, absurd, good_chunks, false), ": expected a shape that fits the file's "},
        {"absurd chunks",
         put(
             type, dims, [=] { return chunked_with_fletcher(wide); }, false),
         ": expected chunks of at most 16777216 bytes"},
        {"never written", put(type, dims, good_chunks, false), " bytes stored, got 0"},
        {"missing", [=](hid_t file) { remove_link(file, path); }, ": expected a group or dataset, got none"},
        {"unknown object",
         [=](hid_t file) { H5Gclose(H5Gcreate2(file, (path + "_x").c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)); },
         "_x: expected nothing of that name, got an unknown object"},
        {"group for dataset",
         [=](hid_t file) {
             remove_link(file, path);
             H5Gclose(H5Gcreate2(file, path.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
         },
         ": expected readable HDF5 data, got H5Dopen2"},
    };
}

void set_text(hid_t file, const char* name, const std::string& text, bool variable) {
    H5Adelete(file, name);
    const hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, variable ? H5T_VARIABLE : text.size());
    const hid_t space = H5Screate(H5S_SCALAR);
    const hid_t attribute = H5Acreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    const char* pointer = text.c_str();
    H5Awrite(attribute, type, variable ? static_cast<const void*>(&pointer) : pointer);
    H5Aclose(attribute);
}

void set_number(hid_t file, const char* name, std::int64_t number, hid_t type = H5T_STD_I64LE) {
    H5Adelete(file, name);
    const hid_t space = H5Screate(H5S_SCALAR);
    const hid_t attribute = H5Acreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(attribute, H5T_NATIVE_INT64, &number);
    H5Aclose(attribute);
}

class CheckpointHostile : public testing::Test {
  protected:
    CheckpointHostile() {
        H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
        replica.start("a", 12);
        replica.start("b", 5);
        replica.write_round(20);
        good_image = read_bytes(folder.file("0-0-0.h5"));
        good_image.resize(good_image.size() - detail::trailer_bytes);
    }

    /// The store's message about a commit that replaces the good one.
    std::string line_about(const std::vector<char>& commit) {
        write_bytes(folder.file("0-0-0.h5"), commit);
        CheckpointStore store(folder.path(), small_identity(), 0);
        EXPECT_TRUE(store.items().empty());
        return store.damage().empty() ? "(nothing)" : store.damage()[0];
    }

    void expect_refused(const std::vector<Case>& cases) {
        for (const Case& c : cases) {
            const std::string line = line_about(sealed(edited(folder.file("scratch"), good_image, c.edit)));
            EXPECT_EQ(line.rfind(folder.file("0-0-0.h5").string() + ": ", 0), 0U) << c.name << ": " << line;
            EXPECT_NE(line.find(c.expected), std::string::npos) << c.name << ": " << line;
        }
    }

    const FastFiles fast;
    const TemporaryFolder folder;
    PretendedReplica replica{folder.path(), 0, 0};
    std::vector<char> good_image;  ///< the commit without its trailer
};

TEST_F(CheckpointHostile, TheHelperItselfChangesNothing) {
    const std::vector<char> same = sealed(edited(folder.file("scratch"), good_image, [](hid_t) {}));
    write_bytes(folder.file("0-0-0.h5"), same);
    CheckpointStore store(folder.path(), small_identity(), 0);
    EXPECT_TRUE(store.damage().empty());
    expect_item(store, "a", 20, 31);
}

// Versions 1 and 2, which lack log-probabilities and drafter tensors, can still be read.
TEST_F(CheckpointHostile, VersionsBeforeAreRead) {
    for (const int version : {2, 1}) {
        write_bytes(folder.file("0-0-0.h5"), sealed(edited(folder.file("scratch"), good_image, [&](hid_t file) {
                        remove_link(file, "drafter_tensors");
                        if (version == 1) {
                            remove_link(file, "items/logprobs");
                            remove_link(file, "items/logprobs_count");
                        }
                        set_number(file, "format_version", version);
                    })));
        CheckpointStore store(folder.path(), small_identity(), 0);
        EXPECT_TRUE(store.damage().empty());
        const RestoredItem item = expect_item(store, "a", 20, 31);
        EXPECT_EQ(item.logprobs.empty(), version == 1);
        EXPECT_TRUE(item.drafter.front().tensors.empty());
    }
}

TEST_F(CheckpointHostile, StructureOfACommit) {
    expect_refused(structural_cases("items/tokens", H5T_STD_I32LE, {40}));
    expect_refused(structural_cases("kv_files/checksum", H5T_STD_U64LE, {2}));
}

TEST_F(CheckpointHostile, Columns) {
    constexpr std::int64_t max_value = std::numeric_limits<std::int64_t>::max();
    expect_refused({
        {"negative count", column("items/tokens_count", {-1, 41}), "items/tokens_count: expected 0 to 40, got -1"},
        {"huge count", column("items/tokens_count", {max_value, max_value}),
         "items/tokens_count: expected 0 to 40, got 92233"},
        {"second count too large", column("items/key_count", {1, 2}), "items/key_count: expected 0 to 1, got 2"},
        {"counts too small", column("items/tokens_count", {20, 19}),
         "items/tokens_count: expected a sum of 40, got 39"},
        {"short column", column("items/kv_begin", {0}), "items/kv_begin: expected 2 values, got 1"},
        {"long column", column("items/first_token", {0, 0, 0}), "items/first_token: expected 2 values, got 3"},
        {"empty for full", column("items/drafter_row_width", {}), "items/drafter_row_width: expected 2 values, got 0"},
        {"negative prompt", column("items/prompt_tokens", {-1, 5}), "items/prompt_tokens: expected a count, got -1"},
        {"huge prompt", column("items/prompt_tokens", {max_value, 5}),
         "items/prompt_tokens: expected a count, got 9223372"},
        {"negative kv_begin", column("items/kv_begin", {-5, 0}),
         "items/kv_begin: expected a position of the item, got -5"},
        {"kv_end before kv_begin", column("items/kv_end", {-1, 24}), "items/kv_end: expected a position from kv_begin"},
        {"kv_end beyond the item", column("items/kv_end", {33, 24}), "items/kv_end: expected a position from kv_begin"},
        {"first round in the middle", column("items/first_token", {7, 0}),
         "items/first_token: expected 0 in an item's"},
        {"row width", column("items/drafter_row_width", {4, 4}),
         "items/drafter_rows: expected whole rows, got 6 values"},
        {"no row width", column("items/drafter_row_width", {0, 0}), "items/drafter_rows: expected whole rows"},
        {"uneven logprobs", column("items/logprobs_count", {61, 59}),
         "items/logprobs: expected as many for each token, got 61 words for 20 tokens"},
        {"no logprobs in version 2", [](hid_t file) { remove_link(file, "items/logprobs"); },
         "items/logprobs: expected a group or dataset, got none"},
        {"tensor of no item", column("drafter_tensors/item", {0, 0, 2, 1}),
         "drafter_tensors/item: expected a row of items, got 2"},
        {"tensor of a negative item", column("drafter_tensors/item", {0, -1, 1, 1}),
         "drafter_tensors/item: expected a row of items, got -1"},
        {"tensor twice", column("drafter_tensors/item", {0, 1, 0, 1}),
         "drafter_tensors/name: expected a name, once per item, got 'state'"},
        {"shape of other words", column("drafter_tensors/shape", {2, 2, 2, 3}),
         "drafter_tensors/shape: expected sizes whose product is the number of words, got another for 6 words"},
        {"negative shape", column("drafter_tensors/shape", {-2, -3, 2, 3}), "drafter_tensors/shape: expected sizes"},
        {"huge shape", column("drafter_tensors/shape", {max_value, max_value, 2, 3}),
         "drafter_tensors/shape: expected sizes"},
        {"zero shape", column("drafter_tensors/shape", {0, 3, 2, 3}), "drafter_tensors/shape: expected sizes"},
        {"no tensors in version 3", [](hid_t file) { remove_link(file, "drafter_tensors"); },
         "drafter_tensors: expected a group or dataset, got none"},
        {"negative row width", column("items/drafter_row_width", {-3, 3}), "items/drafter_row_width: expected a count"},
        {"head beyond", column("kv_files/first_kv_head", {0, 5}),
         "kv_files/first_kv_head: expected a head of the model"},
        {"negative head", column("kv_files/first_kv_head", {-1, 2}), "kv_files/first_kv_head: expected a head"},
        {"too many heads", column("kv_files/num_kv_heads", {2, 3}),
         "kv_files/num_kv_heads: expected heads of the model"},
        {"absurd heads", column("kv_files/num_kv_heads", {2, max_value}),
         "kv_files/num_kv_heads: expected heads of the model"},
    });
}

TEST_F(CheckpointHostile, Attributes) {
    expect_refused({
        {"other format", [](hid_t file) { set_text(file, "format", "longhaul kv", false); },
         "format: expected longhaul"},
        {"missing", [](hid_t file) { H5Adelete(file, "replica"); }, "replica: expected readable HDF5 data"},
        {"negative", [](hid_t file) { set_number(file, "epoch", -1); }, "epoch: expected 0 to "},
        {"huge", [](hid_t file) { set_number(file, "num_layers", std::int64_t{1} << 62); },
         "num_layers: expected 0 to"},
        {"wrong number", [](hid_t file) { set_number(file, "round", 0, H5T_STD_I32LE); }, "round: expected one int64"},
        {"text for number", [](hid_t file) { set_text(file, "round", "x", false); }, "round: expected one int64"},
        {"number for text", [](hid_t file) { set_number(file, "job", 1); }, "job: expected a text of fixed length"},
        {"variable text", [](hid_t file) { set_text(file, "job", "x", true); }, "job: expected a text of fixed length"},
        {"long text", [](hid_t file) { set_text(file, "job", std::string(60000, 'x'), false); },
         "job: expected a text"},
        {"other round", [](hid_t file) { set_number(file, "round", 4); },
         "kv_files/name: expected a KV file of this round"},
    });
}

TEST_F(CheckpointHostile, RowsNoRoundWrites) {
    struct RowCase {
        std::function<void(Commit&)> change;
        const char* expected;
    };
    const std::vector<RowCase> cases{
        {[](Commit& c) { c.items[1].key = "a"; }, "items/key: expected each item once, got 'a' twice"},
        {[](Commit& c) { c.items[1].key = ""; }, "items/key: expected a name"},
        {[](Commit& c) { c.items[0].tokens[3] = -7; }, "items/tokens: expected token ids, got -7"},
        {[](Commit& c) { c.items[0].previous_commit = "../../x"; },
         "items/previous_commit: expected the name of another"},
        {[](Commit& c) { c.items[0].previous_commit = "0-0-0.h5"; },
         "items/previous_commit: expected the name of another"},
        {[](Commit& c) { c.items[0].previous_commit = "0-0-0.1.h5"; },
         "items/previous_commit: expected the name of anot"},
        {[](Commit& c) { c.items[0].previous_commit = "0-0-1.h5.tmp"; }, "items/previous_commit: expected the name of"},
        {[](Commit& c) { c.kv_files[0].name = "../../../etc/passwd"; },
         "kv_files/name: expected a KV file of this round"},
        {[](Commit& c) { c.kv_files[0].name = "0-0-1.0.h5"; }, "kv_files/name: expected a KV file of this round"},
        {[](Commit& c) { c.kv_files[0].name = "0-0-0.h5"; }, "kv_files/name: expected a KV file of this round"},
        {[](Commit& c) { c.kv_files[0].name = "0-0-1.0.draft.h5"; }, "kv_files/name: expected a KV file of this round"},
        {[](Commit& c) { c.kv_files[0].name = ""; }, "kv_files/name: expected a KV file of this round"},
    };
    const Commit good = read_commit(folder.file("0-0-0.h5"));
    for (const RowCase& c : cases) {
        Commit commit = good;
        c.change(commit);
        const hdf5::Bytes bytes = detail::encode_commit(commit);
        const char* begin = reinterpret_cast<const char*>(bytes.data.get());
        const std::string line = line_about({begin, begin + bytes.size});
        EXPECT_NE(line.find(c.expected), std::string::npos) << line;
    }
}

TEST_F(CheckpointHostile, OtherKindsOfHdf5File) {
    const auto made = [&](H5F_libver_t low, hsize_t userblock, bool left_open) {
        const std::filesystem::path path = folder.file("scratch");
        const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
        H5Pset_libver_bounds(access, low, H5F_LIBVER_LATEST);
        const hid_t creation = H5Pcreate(H5P_FILE_CREATE);
        H5Pset_userblock(creation, userblock);
        const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation, access);
        H5Fflush(file, H5F_SCOPE_GLOBAL);
        const std::vector<char> open_bytes = read_bytes(path);
        H5Fclose(file);
        return left_open ? open_bytes : read_bytes(path);
    };
    EXPECT_NE(line_about(sealed(made(H5F_LIBVER_EARLIEST, 0, false))).find("superblock: expected version 2"),
              std::string::npos);
    EXPECT_NE(line_about(sealed(made(H5F_LIBVER_V110, 0, true))).find("superblock: expected version 2"),
              std::string::npos);
    EXPECT_NE(line_about(sealed(made(H5F_LIBVER_V18, 512, false))).find("superblock: expected an HDF5 file"),
              std::string::npos);
    const std::string empty = line_about(sealed(made(H5F_LIBVER_V18, 0, false)));
    EXPECT_NE(empty.find("format: expected readable HDF5 data"), std::string::npos) << empty;
}

TEST_F(CheckpointHostile, OpenForWriteFlag) {
    replica.write_round(20);
    for (const char* name : {"0-0-1.h5", "0-0-1.0.h5"}) {
        SCOPED_TRACE(name);
        const std::vector<char> good = read_bytes(folder.file(name));
        std::vector<char> flagged = good;
        flagged[11] = 1;  // file consistency flags of a version 2 superblock
        const bool is_commit = std::string(name) == "0-0-1.h5";
        if (is_commit) flagged = sealed({flagged.begin(), flagged.end() - detail::trailer_bytes});
        write_bytes(folder.file(name), flagged);
        CheckpointStore store(folder.path(), small_identity(), 0);
        const RestoredItem item = expect_item(store, "a", is_commit ? 20 : 40, 31);
        EXPECT_TRUE(any_contains(is_commit ? store.damage() : item.damage,
                                 "superblock: expected a closed file, got a file still marked as open for writing"));
        write_bytes(folder.file(name), good);
    }
}

/// Replaces a KV file with an edited one and makes the commit agree with it.
class CheckpointHostileKv : public CheckpointHostile {
  protected:
    std::vector<std::string> lines_about(const std::vector<char>& kv_bytes, const CheckpointIdentity& identity) {
        write_bytes(folder.file("0-0-0.0.h5"), kv_bytes);
        Commit commit = good;
        commit.kv_files[0].num_bytes = kv_bytes.size();
        commit.kv_files[0].checksum =
            detail::checksum_of(reinterpret_cast<const std::byte*>(kv_bytes.data()), kv_bytes.size());
        std::filesystem::remove(folder.file("0-0-0.h5"));
        write_commit(folder.path(), commit);
        CheckpointStore store(folder.path(), identity, 0);
        return expect_item(store, "a", 20, 0).damage;
    }

    void expect_kv_refused(const std::vector<Case>& cases) {
        const std::vector<char> good_kv = read_bytes(folder.file("0-0-0.0.h5"));
        for (const Case& c : cases) {
            const auto lines = lines_about(edited(folder.file("scratch"), good_kv, c.edit), small_identity());
            EXPECT_TRUE(any_contains(lines, "0-0-0.0.h5")) << c.name;
            EXPECT_TRUE(any_contains(lines, c.expected)) << c.name << ": " << (lines.empty() ? "" : lines[0]);
        }
        write_bytes(folder.file("0-0-0.0.h5"), good_kv);
    }

    Commit good = read_commit(folder.file("0-0-0.h5"));
};

TEST_F(CheckpointHostileKv, Structure) {
    expect_kv_refused(structural_cases("values", H5T_STD_U16LE, {2, 2, 55, 8}));
}

TEST_F(CheckpointHostileKv, ShapesAndItems) {
    constexpr std::int64_t max_value = std::numeric_limits<std::int64_t>::max();
    const auto dataset_of = [](std::vector<hsize_t> dims) {
        return [=](hid_t file) {
            hsize_t elements = 1;
            for (const hsize_t dim : dims) elements *= dim;
            const std::vector<std::uint16_t> zeros(elements);
            replace(file, "keys", H5T_STD_U16LE, dims, chunked_with_fletcher(dims), zeros.data(), H5T_NATIVE_UINT16);
        };
    };
    expect_kv_refused({
        {"fewer layers", dataset_of({1, 2, 55, 8}), "keys: expected the shape its commit says"},
        {"fewer heads", dataset_of({2, 1, 55, 8}), "keys: expected the shape its commit says"},
        {"fewer tokens", dataset_of({2, 2, 54, 8}), "keys: expected the shape its commit says"},
        {"other dim", dataset_of({2, 2, 55, 4}), "keys: expected the shape its commit says"},
        {"negative begin", column("items/kv_begin", {-1, 0}), "items/kv_end: expected positions in order"},
        {"end before begin", column("items/kv_end", {31, -4}), "items/kv_end: expected positions in order"},
        {"huge end", column("items/kv_end", {max_value, max_value}), "items/kv_end: expected positions in order"},
        {"other positions", column("items/kv_end", {30, 25}),
         "0-0-0.h5: kv_files: expected positions 0 to 31 of 'a' for KV"},
        {"other rank's heads", [](hid_t file) { set_number(file, "first_kv_head", 2); },
         "first_kv_head: expected 0, got 2"},
        {"other model", [](hid_t file) { set_text(file, "model", "99", false); },
         "identity: expected that of its commit"},
        {"a commit", [](hid_t file) { set_text(file, "format", "longhaul commit", false); },
         "format: expected longhaul kv"},
    });
}

TEST_F(CheckpointHostile, CyclesAndForksOfCommits) {
    const auto put = [&](std::int64_t round, const std::string& previous, std::int64_t first, std::int64_t count) {
        Commit commit{.name = commit_name(7, 0, round),
                      .identity = small_identity(),
                      .replica = 7,
                      .epoch = 0,
                      .round = round,
                      .items = {},
                      .kv_files = {}};
        commit.items.push_back({.key = "loop",
                                .previous_commit = previous,
                                .prompt_tokens = 3,
                                .first_token = first,
                                .tokens = std::vector<std::int32_t>(static_cast<std::size_t>(count), 1),
                                .kv_begin = 0,
                                .kv_end = 0,
                                .drafter = {},
                                .statistics = ""});
        write_commit(folder.path(), commit);
    };
    put(0, "7-0-1.h5", 100, 0);  // a cycle of two
    put(1, "7-0-0.h5", 100, 0);
    put(2, "7-0-1.h5", 100, 50);  // and a tail that links to it
    {
        CheckpointStore store(folder.path(), small_identity(), 0);
        EXPECT_FALSE(store.items().contains("loop"));
        EXPECT_FALSE(store.restore("loop").has_value());
        EXPECT_TRUE(any_contains(store.damage(), "items/previous_commit of 'loop'"));
    }
    put(3, "", 0, 4);            // a valid start
    put(4, "7-0-3.h5", 5, 10);   // a gap after it
    put(5, "7-0-3.h5", 3, 10);   // an overlap
    put(6, "0-0-0.h5", 20, 10);  // links to a commit without this item
    CheckpointStore store(folder.path(), small_identity(), 0);
    const auto item = store.restore("loop");
    ASSERT_TRUE(item);
    EXPECT_EQ(item->tokens.size(), 4U);
    for (const char* name : {"7-0-4.h5", "7-0-5.h5", "7-0-6.h5"}) {
        EXPECT_TRUE(any_contains(item->damage, std::string(name) + ": items/previous_commit of 'loop'")) << name;
    }
}

}  // namespace
}  // namespace longhaul::engine
