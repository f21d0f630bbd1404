// The fake that the engine's tests use.

#include "services/cache/store/source/testing/fake_block_source.h"
#include "tests/conformance/cache/source/source_conformance.h"

namespace cairn::cache::conformance {
namespace {

class FakeUnderTest final : public SourceUnderTest {
 public:
  BlockSource& source() override { return source_; }
  void Put(const Digest& fingerprint, const BlockKey& key, const SourceBlock& block,
           const std::vector<std::vector<std::byte>>& bytes) override {
    source_.Put(fingerprint, key, block, bytes);
  }
  void Remove(const Digest& fingerprint, const BlockKey& key) override {
    source_.Remove(fingerprint, key);
  }
  void Damage(const Digest&, const BlockKey&) override { source_.FlipBytes(1); }
  void Stall() override { source_.DelayAnswers(std::chrono::hours(1)); }
  TimePoint Now() const override { return clock_.Now(); }
  void Pass(Duration time) override {
    clock_.Advance(time);
    source_.RunDue();
  }
  void Stop() override { source_.DropAnswers(); }

 private:
  FakeClock clock_;
  testing::FakeBlockSource source_{&clock_};
};

INSTANTIATE_TEST_SUITE_P(Memory, SourceConformance,
                         ::testing::Values(SourceCase{
                             "Fake", [] { return std::make_unique<FakeUnderTest>(); }}),
                         [](const auto& c) { return c.param.name; });

}  // namespace
}  // namespace cairn::cache::conformance
