// Tables in a build without Apache Arrow.
#include <gtest/gtest.h>

#include "tests/runner/dataset_fixture.hpp"

namespace longhaul::runner {
namespace {

struct WithoutArrow : DataSetTest {};

TEST_F(WithoutArrow, TablesAreRefusedWithWhatToDo) {
    const std::string refusal =
        ": expected a build with Apache Arrow, which reads tables, got one without; pip install pyarrow and build "
        "again "
        "(LONGHAUL_ARROW), or convert the data to JSONL";
    write("d/data/train-00000-of-00001.parquet", "PAR1");
    for (const char* task : {"prompts", "wmt", "xsum", "dolly", "longwriter"}) {
        EXPECT_EQ(message_of([&] { open(task, folder_ / "d"); }), "d/data/train-00000-of-00001.parquet" + refusal)
            << task;
    }
}

}  // namespace
}  // namespace longhaul::runner
