#include "protocol/link/link_convert.h"

#include <cmath>

#include "common/status/matchers.h"

namespace cairn::link {
namespace {

using cairn::testing::StatusIs;
using ::testing::HasSubstr;

OpenRequest AnOpen() {
  OpenRequest request{.epoch = 9, .host = "h", .version = 22902, .memories = {{1, 10}, {4, 20}}};
  for (size_t i = 0; i < request.id.size(); ++i) request.id[i] = static_cast<char>(i);
  return request;
}

MoveRequest AMove() {
  return {
      .epoch = 9,
      .sequence = 3,
      .way = Way::kPut,
      .plan = {{{.source = 1, .source_offset = 2, .target = 3, .target_offset = 4, .bytes = 5}}},
      .timeout = std::chrono::milliseconds(250)};
}

TEST(LinkConvertTest, KeepsEveryField) {
  v1::LinkOpenRequest open;
  ToProto(AnOpen(), "reader", &open);
  EXPECT_EQ(open.reader(), "reader");
  const auto opened = FromProto(open);
  ASSERT_OK(opened);
  EXPECT_EQ(opened->epoch, 9u);
  EXPECT_EQ(opened->id, AnOpen().id);
  EXPECT_EQ(opened->host, "h");
  EXPECT_EQ(opened->version, 22902);
  EXPECT_EQ(opened->memories, AnOpen().memories);

  v1::LinkOpenResponse response;
  ToProto(OpenAnswer{.host = "there", .version = 23203, .memories = {{0, 1}}}, &response);
  const auto answer = FromProto(response);
  ASSERT_OK(answer);
  EXPECT_EQ(answer->host, "there");
  EXPECT_EQ(answer->version, 23203);
  EXPECT_EQ(answer->memories, (std::vector<MemorySize>{{0, 1}}));

  v1::LinkMoveRequest move;
  ToProto(AMove(), "reader", &move);
  const auto moved = FromProto(move);
  ASSERT_OK(moved);
  EXPECT_EQ(moved->epoch, 9u);
  EXPECT_EQ(moved->sequence, 3u);
  EXPECT_EQ(moved->way, Way::kPut);
  EXPECT_EQ(moved->plan.pieces, AMove().plan.pieces);
  EXPECT_EQ(moved->timeout, std::chrono::milliseconds(250));
}

TEST(LinkConvertTest, NamesWhatIsWrong) {
  const auto refused = [](auto proto, const char* field, const auto& change) {
    change(proto);
    EXPECT_THAT(FromProto(proto), StatusIs(StatusCode::kInvalidArgument, HasSubstr(field)));
  };
  v1::LinkOpenRequest open;
  ToProto(AnOpen(), "reader", &open);
  refused(open, "unique_id: got 127", [](auto& m) { m.mutable_unique_id()->pop_back(); });
  refused(open, "nccl_version", [](auto& m) { m.set_nccl_version(UINT32_MAX); });
  refused(open, "memories", [](auto& m) { m.mutable_memories(0)->set_bytes(0); });
  v1::LinkMoveRequest move;
  ToProto(AMove(), "reader", &move);
  refused(move, "way", [](auto& m) { m.set_way(static_cast<v1::LinkWay>(7)); });
  refused(move, "timeout", [](auto& m) { m.set_timeout_seconds(-1); });
  refused(move, "timeout", [](auto& m) { m.set_timeout_seconds(601); });
  refused(move, "timeout", [](auto& m) { m.set_timeout_seconds(std::nan("")); });
  refused(move, "pieces", [](auto& m) { m.clear_pieces(); });
  refused(move, "pieces", [](auto& m) {
    for (size_t i = 0; i <= Plan::kMostPieces; ++i) m.add_pieces()->set_bytes(1);
  });
  EXPECT_THAT(CheckReader(""), StatusIs(StatusCode::kInvalidArgument, HasSubstr("reader")));
  EXPECT_THAT(CheckReader(std::string(129, 'r')),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("129")));
  EXPECT_OK(CheckReader("r"));
}

}  // namespace
}  // namespace cairn::link
