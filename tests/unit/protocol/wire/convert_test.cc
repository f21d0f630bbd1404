#include "protocol/wire/convert.h"

#include "cairn/client/types.h"
#include "common/status/matchers.h"
#include "tests/unit/clients/cpp/parts.h"

namespace cairn::wire {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::_;
using ::testing::HasSubstr;

NamespaceSpec OpaqueSpec() {
  NamespaceSpec spec = client::testing::SmallSpec();
  spec.salt = std::string("\0\xff", 2);
  spec.weight_epoch = UINT64_MAX;
  spec.layout.form = OpaqueLayout{.description = "engine", .max_part_bytes = 1000, .parts = 3};
  spec.key_version = 65535;
  spec.key_scheme = "engine-hash";
  return spec;
}

NamespaceSpec PooledSpec() {
  NamespaceSpec spec = OpaqueSpec();
  spec.layout.form =
      OpaqueLayout{.description = "engine",
                   .pools = {{"full", 64, 3, 1000, true}, {"window", 128, 1, UINT64_MAX, false}}};
  return spec;
}

TEST(WireNamespaceTest, GoesThereAndBack) {
  for (const NamespaceSpec& spec : {client::testing::SmallSpec(), OpaqueSpec(), PooledSpec()}) {
    v1::NamespaceSpec proto;
    ToProto(spec, &proto);
    v1::NamespaceSpec parsed;
    ASSERT_TRUE(parsed.ParseFromString(proto.SerializeAsString()));
    const Result<NamespaceSpec> back = FromProto(parsed);
    ASSERT_OK(back);
    EXPECT_EQ(*back, spec);
  }
}

TEST(WireNamespaceTest, RefusesWhatThePlainFormCannotHold) {
  v1::NamespaceSpec proto;
  ToProto(client::testing::SmallSpec(), &proto);
  v1::NamespaceSpec bad = proto;
  bad.mutable_layout()->clear_form();
  EXPECT_THAT(FromProto(bad),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'layout.form': got none")));
  bad = proto;
  bad.mutable_layout()->mutable_native()->mutable_groups(0)->mutable_planes(1)->set_dtype(
      static_cast<v1::DType>(77));
  EXPECT_THAT(FromProto(bad), StatusIs(StatusCode::kInvalidArgument,
                                       HasSubstr("groups[0].planes[1].dtype': got 77")));
  bad = proto;
  bad.mutable_layout()->mutable_native()->set_key_rotation(static_cast<v1::KeyRotation>(9));
  EXPECT_THAT(FromProto(bad),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("key_rotation': got 9")));
  EXPECT_THAT(FromProto(v1::NamespaceSpec()), StatusIs(StatusCode::kInvalidArgument, _));
  ToProto(PooledSpec(), &bad);
  for (int i = 0; i < 65536; ++i) bad.mutable_layout()->mutable_opaque()->add_pools();
  EXPECT_THAT(FromProto(bad), StatusIs(StatusCode::kInvalidArgument,
                                       HasSubstr("pools': got 65538 pools, expected at most 32")));
}

// A node may list what a newer version stored.
TEST(WireNamespaceTest, FieldsThatThisVersionCannotUseComeThrough) {
  v1::NamespaceSpec proto;
  ToProto(client::testing::SmallSpec(), &proto);
  proto.set_recipe("codec9:of=tomorrow");
  const auto spec = FromProto(proto);
  ASSERT_OK(spec);
  EXPECT_EQ(spec->recipe, "codec9:of=tomorrow");
}

TEST(WireNamespaceTest, TextsComeThroughWhereTheLayoutDoesNot) {
  v1::NamespaceSpec proto;
  proto.set_tenant("t");
  proto.set_model("m");
  proto.set_recipe("codec9");
  v1::LayerGroup* const group = proto.mutable_layout()->mutable_native()->add_groups();
  group->add_planes()->set_dtype(static_cast<v1::DType>(99));
  EXPECT_FALSE(FromProto(proto).ok());
  const NamespaceSpec spec = WithoutLayout(proto);
  EXPECT_EQ(spec.tenant, "t");
  EXPECT_EQ(spec.model, "m");
  EXPECT_EQ(spec.recipe, "codec9");
}

TEST(WireNamespaceTest, SaltsOfOlderNodesAreNotTaken) {
  v1::FieldDifference proto;
  proto.set_field("salt");
  proto.set_stored("746f70");
  proto.set_requested("");
  EXPECT_EQ(FromProto(proto).stored.find("746f70"), std::string::npos);
  proto.set_field("model");
  EXPECT_EQ(FromProto(proto).stored, "746f70");
}

TEST(WireNamespaceTest, UnspecifiedRotationMeansAfterRope) {
  v1::NamespaceSpec proto;
  ToProto(client::testing::SmallSpec(), &proto);
  proto.mutable_layout()->mutable_native()->clear_key_rotation();
  EXPECT_EQ(*FromProto(proto), client::testing::SmallSpec());
}

TEST(WirePartRectTest, ChecksShapeAndGrid) {
  const format::PartRect rect = {1, 3, 2, 6};
  v1::PartRect proto;
  ToProto(rect, &proto);
  EXPECT_EQ(*FromProto(proto, "part"), rect);
  EXPECT_OK(CheckInGrid(rect, client::testing::SmallSpec().layout, "part"));
  EXPECT_THAT(CheckInGrid({0, 5, 0, 6}, client::testing::SmallSpec().layout, "part"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("4 layers x 6 heads")));
  EXPECT_OK(CheckInGrid({0, 1, 2, 3}, OpaqueSpec().layout, "part"));
  EXPECT_OK(CheckInGrid({0, 1, 2, 3}, PooledSpec().layout, "part"));
  EXPECT_OK(CheckInGrid({1, 2, 0, 1}, PooledSpec().layout, "part"));
  EXPECT_THAT(CheckInGrid({1, 2, 1, 2}, PooledSpec().layout, "part"),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("expected a part of one pool: 'window' has layer 1 and 1 heads")));
  EXPECT_THAT(CheckInGrid({0, 2, 0, 1}, PooledSpec().layout, "part"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'full' has layer 0")));
  EXPECT_THAT(CheckInGrid({0, 1, 1, 3}, OpaqueSpec().layout, "part"),
              StatusIs(StatusCode::kInvalidArgument, _));
  proto.set_layer_end(1);
  EXPECT_THAT(FromProto(proto, "part"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'part': got layers [1, 1)")));
  proto.set_layer_end(65536);
  EXPECT_THAT(FromProto(proto, "part"), StatusIs(StatusCode::kInvalidArgument, HasSubstr("65535")));
  EXPECT_THAT(FromProto(v1::PartRect(), "part"), StatusIs(StatusCode::kInvalidArgument, _));
}

TEST(WireEnumsTest, TiersAndReasonsToleratesUnknownOnes) {
  EXPECT_EQ(TierToProto(TierKind::kDisk), v1::TIER_KIND_DISK);
  EXPECT_EQ(TierToProto(std::optional<TierKind>()), v1::TIER_KIND_UNSPECIFIED);
  EXPECT_EQ(TierFromProto(v1::TIER_KIND_HOST), TierKind::kHost);
  EXPECT_EQ(TierFromProto(v1::TIER_KIND_UNSPECIFIED), std::nullopt);
  EXPECT_EQ(TierFromProto(42), std::nullopt);
  for (int i = 0; i <= v1::MISS_REASON_FINGERPRINT; ++i) {
    EXPECT_EQ(MissReasonToProto(MissReasonFromProto(i)), i);
    // "MISS_REASON_ABSENT" <-> "absent".
    std::string name = v1::MissReason_Name(static_cast<v1::MissReason>(i)).substr(12);
    for (char& c : name) c = static_cast<char>(std::tolower(c));
    EXPECT_EQ(Name(static_cast<MissReason>(i)), name);
  }
  EXPECT_EQ(MissReasonFromProto(99), MissReason::kAbsent);
  EXPECT_EQ(MissReasonFromProto(-1), MissReason::kAbsent);
}

TEST(WireEnumsTest, AnUnknownCodecIsRefused) {
  for (const format::Codec codec : {format::Codec::kRaw, format::Codec::kOpaque,
                                    format::Codec::kInt8, format::Codec::kCacheGen}) {
    EXPECT_EQ(*FromProto(ToProto(codec), "codec"), codec);
  }
  const int unknown = static_cast<int>(format::kLastCodec) + 1;
  EXPECT_THAT(
      FromProto(static_cast<v1::Codec>(unknown), "codec"),
      StatusIs(StatusCode::kInvalidArgument, HasSubstr("codec " + std::to_string(unknown))));
}

TEST(WireKeysTest, AreWholeAndBounded) {
  const auto keys = client::testing::KeysFor(client::testing::SmallSpec(), 3);
  EXPECT_EQ(*KeysFromProto(KeysToProto(keys)), keys);
  EXPECT_THAT(KeysFromProto(""),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("'keys': got 0 bytes")));
  EXPECT_THAT(KeysFromProto(std::string(33, 'x')),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("33")));
  EXPECT_OK(KeysFromProto(std::string(kMaxKeys * 32, 'x')));
  EXPECT_THAT(KeysFromProto(std::string((kMaxKeys + 1) * 32, 'x')),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("65536")));
}

TEST(WireStatusTest, EveryCodeOfAPartGoesThereAndBack) {
  for (int code = 0; code <= 16; ++code) {
    const Status status = code == 0 ? OkStatus() : Status(static_cast<StatusCode>(code), "why");
    v1::PartResult result;
    ToProto(status, &result);
    EXPECT_EQ(FromProto(result), status);
  }
  v1::PartResult strange;
  strange.set_code(77);
  EXPECT_THAT(FromProto(strange), StatusIs(StatusCode::kUnknown, _));
}

}  // namespace
}  // namespace cairn::wire
