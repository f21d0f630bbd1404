#include "services/cache/serve/events/namespace_form.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/status/matchers.h"

namespace cairn::cache {
namespace {

using Kind = EventShape::Kind;
using ::testing::HasSubstr;
using testing::StatusIs;

NamespaceSpec Spec(const std::string& scheme) {
  NamespaceSpec spec;
  spec.model = "model";
  spec.revision = "1";
  spec.numerics = "n";
  spec.key_scheme = scheme;
  spec.layout.block_tokens = 32;
  spec.layout.form = OpaqueLayout{.description = "pages", .max_part_bytes = 100, .parts = 1};
  return spec;
}

TEST(NamespaceFormTest, NamespacesWhoseKeysAreAnEnginesHashesArePublished) {
  for (const char* scheme : {"vllm-sha256-00", "vllm-offload-00", "sglang-sha256"}) {
    EXPECT_TRUE(NamespaceForm::Of(Spec(scheme), "t", false).has_value()) << scheme;
  }
  for (const char* scheme : {"cairn", "lmcache", "vllm", "mine"}) {
    EXPECT_FALSE(NamespaceForm::Of(Spec(scheme), "t", false).has_value()) << scheme;
  }
  NamespaceSpec native = Spec("vllm-sha256-00");
  native.layout.form = NativeLayout{};
  EXPECT_FALSE(NamespaceForm::Of(native, "t", false).has_value());
}

TEST(NamespaceFormTest, TiersAndHashesAreNamedAsTheEngineDoes) {
  const auto vllm = NamespaceForm::Of(Spec("vllm-sha256-00"), "kv@a@b", false);
  ASSERT_TRUE(vllm.has_value());
  EXPECT_EQ(*vllm->topic(), "kv@a@b");
  EXPECT_EQ(vllm->ShapeOf(Kind::kStored, TierKind::kHost, 0),
            (EventShape{.kind = Kind::kStored, .medium = "CPU", .block_tokens = 32}));
  EXPECT_EQ(vllm->ShapeOf(Kind::kRemoved, TierKind::kDisk, 0)->medium, "STORAGE");
  EXPECT_EQ(vllm->ShapeOf(Kind::kRemoved, TierKind::kDevice, 0)->medium, "GPU");
  EXPECT_EQ(vllm->ShapeOf(Kind::kStored, TierKind::kHost, 1), std::nullopt);
  const auto bytes = NamespaceForm::Of(Spec("vllm-sha256-00"), "t", true);
  EXPECT_EQ(bytes->ShapeOf(Kind::kStored, TierKind::kHost, 0)->hashes, HashForm::kBytes);
  const auto sglang = NamespaceForm::Of(Spec("sglang-sha256"), "t", true);
  const auto shape = sglang->ShapeOf(Kind::kStored, TierKind::kHost, 0);
  EXPECT_EQ(shape->hashes, HashForm::kFirstBits);
  EXPECT_EQ(shape->engine, EventEngine::kSglang);
  EXPECT_EQ(shape->medium, "CPU_PINNED");
  EXPECT_EQ(sglang->ShapeOf(Kind::kStored, TierKind::kDisk, 0)->medium, "DISK");
}

TEST(NamespaceFormTest, APoolIsTheGroupOfTheSameNumber) {
  NamespaceSpec spec = Spec("vllm-sha256-00");
  spec.layout.block_tokens = 16;
  spec.layout.form = OpaqueLayout{
      .description = "pages", .pools = {{"window", 32, 1, 100, false}, {"full", 16, 1, 100, true}}};
  const auto vllm = NamespaceForm::Of(spec, "t", false);
  const auto window = vllm->ShapeOf(Kind::kStored, TierKind::kHost, 0);
  EXPECT_EQ(window->group, (EventGroup{.index = 0, .full_attention = false}));
  EXPECT_EQ(window->block_tokens, 32u);
  const auto full = vllm->ShapeOf(Kind::kStored, TierKind::kHost, 1);
  EXPECT_EQ(full->group, (EventGroup{.index = 1, .full_attention = true}));
  EXPECT_EQ(full->block_tokens, 16u);
  // SGLang's events are about its first pool, and have no field for another.
  spec.key_scheme = "sglang-sha256";
  const auto sglang = NamespaceForm::Of(spec, "t", false);
  EXPECT_EQ(sglang->ShapeOf(Kind::kStored, TierKind::kHost, 0)->group, std::nullopt);
  EXPECT_EQ(sglang->ShapeOf(Kind::kStored, TierKind::kHost, 1), std::nullopt);
}

TEST(TopicTest, WordsInBracesAreReplacedOnce) {
  const TopicNames names{.node = "node-{model}", .host = "h"};
  EXPECT_EQ(TopicOf("kv@{node}@{model}", names, "m"), "kv@node-{model}@m");
  EXPECT_EQ(TopicOf("kv@node:{host}@{model}", names, "{host}"), "kv@node:h@{host}");
  EXPECT_EQ(TopicOf("", names, "m"), "");
  EXPECT_EQ(TopicOf("plain", names, "m"), "plain");
  // A client chose it: it does not move the parts of the topic.
  EXPECT_EQ(TopicOf("kv@{node}@{model}", {.node = "n"}, "a@b\nc"), "kv@n@a_b_c");
}

TEST(TopicTest, AWrongTopicIsNamed) {
  for (const char* topic : {"", "kv", "kv@{node}@{model}", "{host}{host}"}) {
    EXPECT_OK(CheckTopic(topic, "events.topic"));
  }
  for (const char* topic : {"{", "}", "kv@{nod}", "{node", "{node}}", "{ node }"}) {
    EXPECT_THAT(CheckTopic(topic, "events.topic"),
                StatusIs(StatusCode::kInvalidArgument,
                         HasSubstr(fmt::format("events.topic: got '{}', expected braces", topic))));
  }
  EXPECT_THAT(CheckTopic("a\nb", "t"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("control")));
  EXPECT_THAT(CheckTopic(std::string(256, 'a'), "t"),
              StatusIs(StatusCode::kInvalidArgument, HasSubstr("255 bytes")));
}

}  // namespace
}  // namespace cairn::cache
