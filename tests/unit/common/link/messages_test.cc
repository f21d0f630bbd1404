#include "common/link/messages.h"

#include <functional>

#include "common/link/memories.h"
#include "common/status/matchers.h"

namespace cairn::link {
namespace {

using cairn::testing::StatusIs;
using ::testing::_;
using ::testing::HasSubstr;

TEST(LinkMessagesTest, APlanNamesWhatIsWrong) {
  Plan plan;
  EXPECT_THAT(plan.Check(), StatusIs(StatusCode::kInvalidArgument, HasSubstr("pieces: got 0")));
  plan.pieces = {{.bytes = 10}, {.source_offset = 10, .target_offset = 10, .bytes = 5}};
  EXPECT_OK(plan.Check());
  EXPECT_EQ(plan.bytes(), 15u);
  plan.pieces[1].target_offset = 9;
  EXPECT_THAT(plan.Check(), StatusIs(StatusCode::kInvalidArgument, HasSubstr("target_offset")));
  plan.pieces[1].target = 1;  // Another memory.
  EXPECT_OK(plan.Check());
  plan.pieces[1].source_offset = UINT64_MAX - 1;
  EXPECT_THAT(plan.Check(), StatusIs(StatusCode::kInvalidArgument, HasSubstr("64 bits")));
  plan.pieces[1] = {.bytes = 0};
  EXPECT_THAT(plan.Check(), StatusIs(StatusCode::kInvalidArgument, HasSubstr("bytes")));
  plan.pieces[1] = {.target = 1, .bytes = Plan::kMostBytes - 9};
  EXPECT_THAT(plan.Check(), StatusIs(StatusCode::kInvalidArgument, HasSubstr("bytes")));
  plan.pieces.assign(Plan::kMostPieces + 1, {.bytes = 1});
  EXPECT_THAT(plan.Check(), StatusIs(StatusCode::kInvalidArgument, HasSubstr("pieces")));
}

TEST(LinkMessagesTest, RequestsNameWhatIsWrong) {
  const OpenRequest open{.epoch = 1, .host = "h", .version = 22902, .memories = {{3, 1}, {5, 1}}};
  EXPECT_OK(Check(open));
  const MoveRequest move{
      .epoch = 1, .sequence = 1, .plan = {{{.bytes = 1}}}, .timeout = std::chrono::seconds(1)};
  EXPECT_OK(Check(move));
  const auto refused = [](auto request, const char* field, const auto& change) {
    change(request);
    EXPECT_THAT(Check(request), StatusIs(StatusCode::kInvalidArgument, HasSubstr(field)));
  };
  refused(open, "epoch", [](OpenRequest& r) { r.epoch = 0; });
  refused(open, "host", [](OpenRequest& r) { r.host = ""; });
  refused(open, "host", [](OpenRequest& r) { r.host = std::string(129, 'h'); });
  refused(open, "version", [](OpenRequest& r) { r.version = -1; });
  refused(open, "memories", [](OpenRequest& r) { r.memories[0].bytes = 0; });
  refused(open, "rising", [](OpenRequest& r) { r.memories[1].number = 3; });
  refused(open, "memories", [](OpenRequest& r) { r.memories.resize(257, {9, 1}); });
  refused(move, "epoch", [](MoveRequest& r) { r.epoch = 0; });
  refused(move, "sequence", [](MoveRequest& r) { r.sequence = 0; });
  refused(move, "timeout", [](MoveRequest& r) { r.timeout = Duration(0); });
  refused(move, "timeout", [](MoveRequest& r) { r.timeout = std::chrono::hours(1); });
  refused(move, "way", [](MoveRequest& r) { r.way = static_cast<Way>(2); });
  refused(move, "pieces", [](MoveRequest& r) { r.plan = {}; });
}

TEST(LinkMemoriesTest, FindsWhatLiesInAMemory) {
  Memories memories;
  const uint32_t first = memories.Add(1000, 100), second = memories.Add(5000, 10);
  EXPECT_EQ(*memories.Find(first, 40, 60), 1040u);
  EXPECT_THAT(memories.Find(first, 41, 60),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("got 60 bytes at 41")))
      << "one byte too many";
  EXPECT_THAT(memories.Find(first, UINT64_MAX, 2), StatusIs(StatusCode::kInvalidArgument, _));
  EXPECT_THAT(memories.Find(7, 0, 1), StatusIs(StatusCode::kNotFound, HasSubstr("7")));
  memories.Remove(first);
  EXPECT_THAT(memories.Find(first, 0, 1), StatusIs(StatusCode::kNotFound, _));
  EXPECT_EQ(memories.all().size(), 1u);
  EXPECT_NE(memories.Add(1000, 1), first);
  EXPECT_EQ(*memories.Find(second, 0, 10), 5000u);
}

}  // namespace
}  // namespace cairn::link
