// The bytes of batches: those that the engines' own classes give for the same events
// (tests/data/kv_events), and what our router's decoder reads out of any.

#include "services/cache/serve/events/batch_encoder.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <random>

#include "common/status/matchers.h"
#include "services/router/events/batch_decoder.h"

namespace cairn::cache {
namespace {

using Kind = EventShape::Kind;

constexpr double kTime = 1234.5;
const std::vector<uint64_t> kNumbers = {
    0, 1, 127, 128, 255, 256, 65535, 65536, UINT32_MAX, 1ull << 32, 1ull << 63, UINT64_MAX};
const std::vector<int64_t> kSigned = {0,         -1,     -32,    -33,       -128,
                                      -129,      -32768, -32769, INT32_MIN, INT64_C(-2147483649),
                                      INT64_MIN, 127,    128,    INT64_MAX};

void Put(uint64_t bits, size_t first, BlockKey* key) {
  for (size_t i = 0; i < 8; ++i) {
    key->bytes[first + i] = static_cast<uint8_t>(bits >> (56 - 8 * i));
  }
}
BlockKey EndingWith(uint64_t bits) {
  BlockKey key;
  key.bytes.fill(0xab);
  Put(bits, 24, &key);
  return key;
}
BlockKey BeginningWith(int64_t bits) {
  BlockKey key;
  key.bytes.fill(0xcd);
  Put(static_cast<uint64_t>(bits), 0, &key);
  return key;
}
std::vector<BlockKey> Hashes(const std::vector<uint64_t>& numbers) {
  std::vector<BlockKey> hashes;
  for (const uint64_t number : numbers) hashes.push_back(EndingWith(number));
  return hashes;
}
std::vector<uint64_t> Counting(uint64_t count) {
  std::vector<uint64_t> numbers;
  for (uint64_t n = 0; n < count; ++n) numbers.push_back(n);
  return numbers;
}

// Bytes by name.
std::map<std::string, std::string> Recorded() {
  std::map<std::string, std::string> recorded;
  std::ifstream file("tests/data/kv_events/batches.txt");
  std::string name, hex;
  while (file >> name >> hex) {
    std::string bytes;
    for (size_t i = 0; i + 1 < hex.size(); i += 2) {
      bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
    }
    recorded[name] = bytes;
  }
  return recorded;
}

KvEvent Event(EventShape shape, std::vector<BlockKey> hashes) {
  return {.shape = shape, .hashes = std::move(hashes)};
}

// The same batches as in tests/engines/record_events.py.
std::map<std::string, std::vector<KvEvent>> Batches() {
  const std::vector<BlockKey> hashes = Hashes(kNumbers);
  std::vector<BlockKey> first;
  for (const int64_t number : kSigned) first.push_back(BeginningWith(number));
  const EventShape stored{.kind = Kind::kStored, .medium = "CPU", .block_tokens = 32};
  const auto vllm = [&](Kind kind, std::string_view medium, uint32_t tokens,
                        std::optional<EventGroup> group = {}, HashForm form = HashForm::kLastBits) {
    return EventShape{
        .kind = kind, .hashes = form, .medium = medium, .block_tokens = tokens, .group = group};
  };
  const auto sglang = [](Kind kind, std::string_view medium) {
    return EventShape{.kind = kind,
                      .engine = EventEngine::kSglang,
                      .hashes = HashForm::kFirstBits,
                      .medium = medium,
                      .block_tokens = 64};
  };
  const EventGroup full{.index = 0, .full_attention = true}, window{.index = 3};
  const KvEvent cleared;
  return {
      {"vllm_nothing", {}},
      {"vllm_cleared", {cleared}},
      {"vllm_stored", {Event(vllm(Kind::kStored, "CPU", 16), hashes)}},
      {"vllm_stored_bytes",
       {Event(vllm(Kind::kStored, "STORAGE", 128, {}, HashForm::kBytes), hashes)}},
      {"vllm_removed", {Event(vllm(Kind::kRemoved, "GPU", 16), hashes)}},
      {"vllm_removed_bytes",
       {Event(vllm(Kind::kRemoved, "CPU", 16, {}, HashForm::kBytes), hashes)}},
      {"vllm_groups",
       {Event(vllm(Kind::kStored, "CPU", 300, full), Hashes({1})),
        Event(vllm(Kind::kStored, "CPU", 70'000, window), Hashes({2})),
        Event(vllm(Kind::kRemoved, "STORAGE", 70'000, window), Hashes({3}))}},
      {"vllm_many", {Event(stored, Hashes(Counting(1000)))}},
      {"vllm_again",
       {Event(vllm(Kind::kRemoved, "CPU", 32), Hashes({5, 6})), Event(stored, Hashes({5, 6}))}},
      {"sglang_stored", {Event(sglang(Kind::kStored, "CPU_PINNED"), first)}},
      {"sglang_removed", {Event(sglang(Kind::kRemoved, "DISK"), first)}},
      {"sglang_cleared", {cleared}},
  };
}

TEST(BatchEncoderTest, BytesAreThoseOfTheEnginesOwnClasses) {
  const auto recorded = Recorded();
  const auto batches = Batches();
  ASSERT_EQ(recorded.size(), 2 * batches.size());
  for (const auto& [name, events] : batches) {
    const size_t at = name.find('_');
    for (const auto& [form, encoding] :
         {std::pair("maps", EventEncoding::kMaps), std::pair("arrays", EventEncoding::kArrays)}) {
      const std::string whole = name.substr(0, at) + "_" + form + name.substr(at);
      const auto found = recorded.find(whole);
      ASSERT_NE(found, recorded.end()) << whole;
      EXPECT_EQ(EncodeBatch(kTime, events, encoding), found->second) << whole;
    }
  }
}

// Whatever happens, our router reads it as it was meant.
TEST(BatchEncoderTest, ARouterReadsWhatWasWritten) {
  std::mt19937_64 random(7);
  const auto any = [&](uint64_t below) { return random() % below; };
  for (int round = 0; round < 300; ++round) {
    std::vector<KvEvent> events(any(6));
    for (KvEvent& event : events) {
      event.shape.kind = static_cast<Kind>(any(3));
      if (event.shape.kind == Kind::kCleared) continue;
      event.shape.hashes = static_cast<HashForm>(any(3));
      const bool first = event.shape.hashes == HashForm::kFirstBits;
      event.shape.engine = first ? EventEngine::kSglang : EventEngine::kVllm;
      event.shape.medium = first ? "CPU_PINNED" : "STORAGE";
      event.shape.block_tokens = static_cast<uint32_t>(1 + any(1 << any(20)));
      if (!first && any(2) == 0) {
        event.shape.group =
            EventGroup{.index = static_cast<uint32_t>(any(32)), .full_attention = any(2) == 0};
      }
      event.hashes.resize(1 + any(40));
      for (BlockKey& hash : event.hashes) {
        for (uint8_t& byte : hash.bytes) byte = static_cast<uint8_t>(random() & random());
        if (any(2) == 0) Put(random() >> any(64), any(2) == 0 ? 0 : 24, &hash);
      }
    }
    for (const EventEncoding encoding : {EventEncoding::kMaps, EventEncoding::kArrays}) {
      const auto batch = router::DecodeBatch(EncodeBatch(kTime, events, encoding));
      ASSERT_OK(batch);
      ASSERT_EQ(batch->events.size(), events.size());
      EXPECT_EQ(batch->unknown, 0u);
      for (size_t i = 0; i < events.size(); ++i) {
        const KvEvent& written = events[i];
        const auto check = [&](const auto& read) {
          ASSERT_EQ(read.hashes.size(), written.hashes.size());
          for (size_t h = 0; h < read.hashes.size(); ++h) {
            const auto bits = [&](size_t at) {
              uint64_t value = 0;
              for (size_t b = at; b < at + 8; ++b) value = value << 8 | written.hashes[h].bytes[b];
              return value;
            };
            const HashForm form = written.shape.hashes;
            EXPECT_EQ(read.hashes[h].low, bits(form == HashForm::kFirstBits ? 0 : 24));
            EXPECT_EQ(read.hashes[h].high, form == HashForm::kBytes ? bits(16) : 0);
          }
          const bool vllm = written.shape.engine == EventEngine::kVllm;
          const auto medium = router::EngineMedium{.tier = vllm ? TierKind::kDisk : TierKind::kHost,
                                                   .remote = vllm};
          EXPECT_EQ(read.medium, medium);
          EXPECT_EQ(read.group.index, written.shape.group ? written.shape.group->index : 0);
        };
        if (written.shape.kind == Kind::kStored) {
          const auto& read = std::get<router::EngineBlocksStored>(batch->events[i]);
          check(read);
          EXPECT_EQ(read.block_tokens, written.shape.block_tokens);
          EXPECT_TRUE(read.tokens.empty());
          EXPECT_FALSE(read.parent.has_value());
          using GroupKind = router::EngineGroup::Kind;
          const auto& group = written.shape.group;
          EXPECT_EQ(read.group.kind, !group                  ? GroupKind::kUntold
                                     : group->full_attention ? GroupKind::kFull
                                                             : GroupKind::kOther);
        } else if (written.shape.kind == Kind::kRemoved) {
          check(std::get<router::EngineBlocksRemoved>(batch->events[i]));
        } else {
          EXPECT_TRUE(std::holds_alternative<router::EngineBlocksCleared>(batch->events[i]));
        }
      }
    }
  }
}

}  // namespace
}  // namespace cairn::cache
