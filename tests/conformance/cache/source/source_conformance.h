#pragma once
// The promises of every source of blocks, as one value-parameterised suite. A new source is one
// more INSTANTIATE_TEST_SUITE_P, with a SourceUnderTest that says how to fill it and how to break
// it.

#include <gmock/gmock.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/concurrency/mutex.h"
#include "common/status/matchers.h"
#include "services/cache/store/source/block_source.h"

namespace cairn::cache::conformance {

// A source and what stands behind it.
class SourceUnderTest {
 public:
  virtual ~SourceUnderTest() = default;
  virtual BlockSource& source() = 0;
  // From now on, the store behind the source holds this block. `bytes`: of each part.
  virtual void Put(const Digest& fingerprint, const BlockKey& key, const SourceBlock& block,
                   const std::vector<std::vector<std::byte>>& bytes) = 0;
  virtual void Remove(const Digest& fingerprint, const BlockKey& key) = 0;
  // The next read of the block gives one wrong byte.
  virtual void Damage(const Digest& fingerprint, const BlockKey& key) = 0;
  // Nothing behind the source answers any more.
  virtual void Stall() = 0;
  // By the source's clock.
  virtual TimePoint Now() const = 0;
  // Time passes: returns when the source has done all that it does of itself meanwhile.
  virtual void Pass(Duration time) = 0;
  // The source ends.
  virtual void Stop() = 0;
};

struct SourceCase {
  std::string name;
  std::function<std::unique_ptr<SourceUnderTest>()> make;
};

// The callback of one call: runs at most once, or is destroyed.
template <typename T>
class Answer {
 public:
  std::function<void(T)> Callback() {
    struct Alive {
      explicit Alive(Answer* answer) : to(*answer) {}
      ~Alive() {
        MutexLock lock(to.mu_);
        to.over_ = true;
        to.changed_.NotifyAll();
      }
      Answer& to;
    };
    return [alive = std::make_shared<Alive>(this)](T value) {
      Answer& to = alive->to;
      MutexLock lock(to.mu_);
      EXPECT_FALSE(to.value_.has_value()) << "called back twice";
      to.value_ = std::move(value);
      to.over_ = true;
      to.changed_.NotifyAll();
    };
  }
  // The value that it was called with; nullopt: it was destroyed.
  std::optional<T> Wait() {
    MutexLock lock(mu_);
    EXPECT_TRUE(changed_.WaitUntil(mu_, std::chrono::steady_clock::now() + std::chrono::seconds(60),
                                   [this] { return over_; }))
        << "neither called back nor destroyed";
    return value_;
  }
  bool over() {
    MutexLock lock(mu_);
    return over_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
  std::optional<T> value_ ABSL_GUARDED_BY(mu_);
};

// A sink that keeps what it gets and says what it is told to.
class RecordingSink final : public BlockSink {
 public:
  Result<std::vector<std::span<std::byte>>> Begin(const SourceBlock& block) override {
    ++begun;
    described = block;
    if (!refuse.ok()) return refuse;
    bytes.clear();
    std::vector<std::span<std::byte>> room;
    for (const SourceBlock::Part& part : block.parts) bytes.emplace_back(part.bytes);
    for (auto& part : bytes) room.emplace_back(part);
    return room;
  }
  Status Finish() override {
    ++finished;
    return bytes == expected ? OkStatus() : Errorf(StatusCode::kDataLoss, "wrong bytes");
  }

  std::vector<std::vector<std::byte>> expected;
  Status refuse;
  int begun = 0, finished = 0;
  SourceBlock described;
  std::vector<std::vector<std::byte>> bytes;
};

class SourceConformance : public ::testing::TestWithParam<SourceCase> {
 protected:
  static constexpr Duration kPatience = std::chrono::milliseconds(200);

  void SetUp() override {
    under_ = GetParam().make();
    ASSERT_NE(under_, nullptr);
  }
  BlockSource& source() { return under_->source(); }
  TimePoint Soon() const { return under_->Now() + kPatience; }

  static Digest Name(uint64_t n) {
    Digest digest;
    const uint64_t words[4] = {n * 0x9e3779b97f4a7c15ull + 1, n, ~n, n ^ 0x55};
    std::memcpy(digest.bytes.data(), words, sizeof(words));
    return digest;
  }
  static std::vector<BlockKey> Keys(uint64_t first, uint64_t last) {
    std::vector<BlockKey> keys;
    for (uint64_t n = first; n <= last; ++n) keys.push_back(Name(n));
    return keys;
  }
  // The parts of block n: two halves of a grid of 4 layers and 2 heads.
  static std::vector<std::vector<std::byte>> BytesOf(uint64_t n) {
    std::vector<std::vector<std::byte>> parts;
    for (uint64_t part = 0; part < 2; ++part) {
      std::vector<std::byte>& bytes = parts.emplace_back(5000 + 100 * n + part);
      for (size_t i = 0; i < bytes.size(); ++i) {
        bytes[i] = static_cast<std::byte>(n * 31 + part * 7 + i);
      }
    }
    return parts;
  }
  static SourceBlock BlockOf(uint64_t n) {
    SourceBlock block;
    if (n > 1) block.parent = Name(n - 1);
    block.at_start = n == 1;
    block.recompute_seconds = 0.25;
    const auto bytes = BytesOf(n);
    for (uint16_t part = 0; part < 2; ++part) {
      const format::PartRect rect{.layer_begin = 0,
                                  .layer_end = 4,
                                  .head_begin = part,
                                  .head_end = static_cast<uint16_t>(part + 1)};
      block.parts.push_back({rect, static_cast<uint32_t>(bytes[part].size())});
    }
    return block;
  }
  void Put(uint64_t n) { under_->Put(ns_, Name(n), BlockOf(n), BytesOf(n)); }

  std::optional<Result<Located>> Locate(const Digest& ns, const std::vector<BlockKey>& keys) {
    Answer<Result<Located>> answer;
    source().Locate(ns, keys, Soon(), answer.Callback());
    return answer.Wait();
  }
  // How many leading keys it has.
  uint32_t Blocks(const Digest& ns, const std::vector<BlockKey>& keys) {
    const auto located = Locate(ns, keys);
    EXPECT_TRUE(located.has_value());
    if (!located) return 0;
    EXPECT_OK(*located);
    uint32_t blocks = 0;
    for (const SourceRun& run : (*located)->runs) blocks += run.blocks;
    return blocks;
  }
  std::optional<Status> Read(uint64_t n, RecordingSink* sink) {
    Answer<Status> answer;
    sink->expected = BytesOf(n);
    source().Read(ns_, Name(n), Soon(), sink, answer.Callback());
    return answer.Wait();
  }

  const Digest ns_ = Name(1'000'000);
  std::unique_ptr<SourceUnderTest> under_;
};

}  // namespace cairn::cache::conformance
