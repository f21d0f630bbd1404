#include "protocol/wire/joint.h"

#include "common/status/matchers.h"

namespace cairn::wire {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::HasSubstr;

JointQuestion Question() {
  return {.pools = {{.pool = 0}, {.pool = 3, .tail_tokens = 511, .proof_blocks = 1}},
          .step_tokens = 32,
          .most_tokens = 4096,
          .all = true};
}

JointAnswer Answer() {
  return {.restorable_tokens = 4064,
          .pool_runs = {{0, 0, 254}, {3, 120, 7}},
          .limiting_pool = 0,
          .restorable = std::string("\0\x80", 2)};
}

TEST(WireJointTest, QuestionsGoThereAndBack) {
  v1::JointQuestion proto;
  ToProto(Question(), &proto);
  const auto back = FromProto(proto);
  ASSERT_OK(back);
  ASSERT_EQ(back->pools.size(), 2u);
  EXPECT_EQ(back->pools[1].pool, 3u);
  EXPECT_EQ(back->pools[1].tail_tokens, 511u);
  EXPECT_EQ(back->pools[1].proof_blocks, 1u);
  EXPECT_EQ(back->step_tokens, 32u);
  EXPECT_EQ(back->most_tokens, 4096u);
  EXPECT_TRUE(back->all);
}

TEST(WireJointTest, QuestionsHavePoolsAndABound) {
  v1::JointQuestion proto;
  EXPECT_THAT(FromProto(proto),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("'joint.pools': got 0 pools, expected 1 to 32")));
  for (int i = 0; i < 65536; ++i) proto.add_pools();
  EXPECT_THAT(FromProto(proto), StatusIs(StatusCode::kInvalidArgument, HasSubstr("got 65536")));
}

TEST(WireJointTest, AnswersGoThereAndBack) {
  v1::JointAnswer proto;
  ToProto(Answer(), &proto);
  const auto back = FromProto(proto, Question(), 261);
  ASSERT_OK(back);
  EXPECT_EQ(back->restorable_tokens, 4064u);
  EXPECT_EQ(back->pool_runs, Answer().pool_runs);
  EXPECT_EQ(back->limiting_pool, 0u);
  EXPECT_EQ(back->restorable, Answer().restorable);
  JointAnswer none = Answer();
  none.limiting_pool.reset();
  proto.Clear();
  ToProto(none, &proto);
  EXPECT_FALSE(FromProto(proto, Question(), 261)->limiting_pool);
}

TEST(WireJointTest, AnAnswerThatContradictsItselfIsInternal) {
  const auto refused = [](auto change, uint32_t blocks = 261) {
    JointAnswer answer = Answer();
    change(answer);
    v1::JointAnswer proto;
    ToProto(answer, &proto);
    return FromProto(proto, Question(), blocks).status();
  };
  EXPECT_OK(refused([](JointAnswer&) {}));
  EXPECT_THAT(refused([](JointAnswer&) {}, 260), StatusIs(StatusCode::kInternal, ::testing::_));
  EXPECT_THAT(refused([](JointAnswer& a) { a.pool_runs[1].pool = 1; }),
              StatusIs(StatusCode::kInternal, HasSubstr("not asked for")));
  EXPECT_THAT(refused([](JointAnswer& a) {
                a.pool_runs.push_back({0, 0, 0});
              }),
              StatusIs(StatusCode::kInternal, HasSubstr("more runs")));
  EXPECT_THAT(refused([](JointAnswer& a) { a.restorable_tokens = 4128; }),
              StatusIs(StatusCode::kInternal, HasSubstr("longer than the limit")));
}

}  // namespace
}  // namespace cairn::wire
