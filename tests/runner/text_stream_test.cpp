// What `longhaul generate` shows of a text while it grows: nothing that a stop string may still take away.
#include "runner/commands/text_stream.hpp"

#include <gtest/gtest.h>

namespace longhaul::runner {
namespace {

TEST(TextStream, ShowsWhatIsCertain) {
    TextStream stream({"END", "\n\n"});
    EXPECT_EQ(stream.push("abc E"), "abc ");
    EXPECT_EQ(stream.push("N"), "");
    EXPECT_EQ(stream.push("EN"), "EN");
    EXPECT_EQ(stream.push("X\n"), "ENX");
    EXPECT_EQ(stream.push("y\n"), "\ny");
    EXPECT_FALSE(stream.stopped());
    EXPECT_EQ(stream.push("\nzEND"), "");
    EXPECT_TRUE(stream.stopped());
    EXPECT_EQ(stream.push("more"), "");
    EXPECT_EQ(stream.finish(), "");

    TextStream open({"STOP"});
    EXPECT_EQ(open.push("to STO"), "to ");
    EXPECT_EQ(open.finish(), "STO");
    TextStream later({"END"});
    EXPECT_EQ(later.push("a END b E", false), "a END b ") << "before the least number of tokens it is text";
    EXPECT_EQ(later.push("ND"), "") << "one that is completed behind it ends the text";
    EXPECT_TRUE(later.stopped());
    TextStream first({"bc", "a"});
    EXPECT_EQ(first.push("xbca"), "x") << "the earliest stop ends the text";
}

}  // namespace
}  // namespace longhaul::runner
