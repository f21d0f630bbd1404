#pragma once
// The promises of every tier, as one value-parameterised suite. A new tier is one more
// INSTANTIATE_TEST_SUITE_P.

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "common/status/matchers.h"
#include "services/cache/store/tier/tier.h"

namespace cairn::cache::conformance {

struct TierCase {
  std::string name;
  // A fresh tier of about this capacity. `directory` is the test's own; persistent tiers are
  // recovered by the suite.
  std::function<std::unique_ptr<Tier>(uint64_t capacity, const std::string& directory)> make;
};

// A call that waits for its callback.
class Waiter {
 public:
  IoCallback Callback() {
    return [this](Status status) {
      std::lock_guard lock(mu_);
      EXPECT_FALSE(done_) << "called back twice";
      status_ = std::move(status);
      done_ = true;
      cv_.notify_all();
    };
  }
  Status Wait() {
    std::unique_lock lock(mu_);
    if (!cv_.wait_for(lock, std::chrono::seconds(60), [this] { return done_; })) {
      return Errorf(StatusCode::kDeadlineExceeded, "no callback");
    }
    return status_;
  }

 private:
  std::mutex mu_;
  std::condition_variable cv_;
  Status status_;
  bool done_ = false;
};

inline Status WriteAndWait(Tier& tier, const Extent& extent, std::string_view record,
                           std::span<const std::byte> bytes) {
  Waiter waiter;
  tier.Write(extent, record, bytes, waiter.Callback());
  return waiter.Wait();
}

inline Status ReadAndWait(Tier& tier, const Extent& extent, std::span<std::byte> bytes) {
  Waiter waiter;
  tier.Read(extent, bytes, waiter.Callback());
  return waiter.Wait();
}

inline Status ReadRangeAndWait(Tier& tier, const Extent& extent, uint64_t offset,
                               std::span<std::byte> bytes) {
  Waiter waiter;
  tier.ReadRange(extent, offset, bytes, waiter.Callback());
  return waiter.Wait();
}

// Bytes that follow from a seed.
inline std::vector<std::byte> Pattern(uint64_t seed, size_t bytes) {
  std::vector<std::byte> out(bytes);
  uint64_t state = seed * 0x9E3779B97F4A7C15u + 1;
  for (size_t i = 0; i < bytes; i += 8) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    std::memcpy(out.data() + i, &state, std::min<size_t>(8, bytes - i));
  }
  return out;
}

// A directory of its own for each test, deleted afterwards.
class ScratchDirectory {
 public:
  explicit ScratchDirectory(const std::string& name)
      : path_(std::filesystem::path(::testing::TempDir()) /
              ("cairn_" + name + "_" + std::to_string(getpid()) + "_" + std::to_string(Next()))) {
    std::filesystem::remove_all(path_);
  }
  ~ScratchDirectory() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_.string(); }

 private:
  static int Next() {
    static std::atomic<int> next{0};
    return next++;
  }
  std::filesystem::path path_;
};

class TierConformance : public ::testing::TestWithParam<TierCase> {
 protected:
  static constexpr uint64_t kCapacity = 16 << 20;

  void SetUp() override { Make(); }
  void Make() {
    tier_.reset();
    tier_ = GetParam().make(kCapacity, directory_.path());
    ASSERT_NE(tier_, nullptr);
    persistent_ = dynamic_cast<PersistentTier*>(tier_.get());
    if (persistent_) {
      found_.clear();
      ASSERT_OK(persistent_->Recover([this](const Extent& extent, std::string_view record) {
        if (refuse_) return false;
        found_.emplace_back(extent, std::string(record));
        return true;
      }));
    }
  }
  // Reserves and writes Pattern(seed).
  Extent Put(uint64_t seed, uint32_t length) {
    const auto extent = tier_->Reserve(length);
    EXPECT_OK(extent);
    if (!extent.ok()) return {};
    EXPECT_OK(
        WriteAndWait(*tier_, *extent, "record " + std::to_string(seed), Pattern(seed, length)));
    return *extent;
  }
  void ExpectBytes(uint64_t seed, const Extent& extent) {
    std::vector<std::byte> bytes(extent.length);
    ASSERT_OK(ReadAndWait(*tier_, extent, bytes));
    EXPECT_EQ(std::memcmp(bytes.data(), Pattern(seed, extent.length).data(), bytes.size()), 0)
        << "seed " << seed;
  }

  ScratchDirectory directory_{"tier"};
  std::unique_ptr<Tier> tier_;
  PersistentTier* persistent_ = nullptr;
  std::vector<std::pair<Extent, std::string>> found_;
  bool refuse_ = false;
};

}  // namespace cairn::cache::conformance
