// The members of a cluster as a source.

#include "services/cache/cluster/peer/peer_source.h"

#include "services/cache/cluster/peer/testing/fake_peers.h"
#include "tests/conformance/cache/source/source_conformance.h"

namespace cairn::cache::conformance {
namespace {

// One block in 512 tokens is a waymark, so here each block is.
constexpr uint32_t kBlockTokens = 512;

class PeersUnderTest final : public SourceUnderTest {
 public:
  PeersUnderTest() {
    for (const char* const id : {"self", "a", "b"}) peers_.Add(id);
    owners_ = std::make_shared<const OwnerMap>(peers_.ids());
    source_ = std::make_unique<PeerSource>(
        PeerSource::Options{.self = "self"},
        PeerSource::Dependencies{
            .links = &peers_,
            .directory = &peers_.at("self").directory,
            .known = [](const Digest&) { return PeerSource::Known{.block_tokens = kBlockTokens}; },
            .timers = &timers_,
            .clock = &clock_});
    source_->SetOwners(owners_);
  }
  ~PeersUnderTest() override { peers_.DropAll(); }
  BlockSource& source() override { return *source_; }
  void Put(const Digest& fingerprint, const BlockKey& key, const SourceBlock& block,
           const std::vector<std::vector<std::byte>>& bytes) override {
    peers_.at("a").blocks.Put(fingerprint, key, block, bytes);
    peers_.Announce(*owners_, "a", HashForWaymark(fingerprint, key));
    // A node reads what it has located.
    const std::vector<BlockKey> keys = {key};
    source_->Locate(fingerprint, keys, Now() + std::chrono::seconds(1), [](const auto&) {});
  }
  void Remove(const Digest& fingerprint, const BlockKey& key) override {
    peers_.at("a").blocks.Remove(fingerprint, key);
  }
  void Damage(const Digest&, const BlockKey&) override { peers_.at("a").blocks.FlipBytes(1); }
  void Stall() override {
    for (const std::string& id : peers_.ids()) {
      peers_.at(id).blocks.DelayAnswers(std::chrono::hours(1));
      peers_.at(id).answers.DelayAnswers(std::chrono::hours(1));
    }
  }
  TimePoint Now() const override { return clock_.Now(); }
  void Pass(Duration time) override {
    clock_.Advance(time);
    timers_.RunDue();
    peers_.RunDue();
  }
  void Stop() override { peers_.DropAll(); }

 private:
  FakeClock clock_;
  Timers timers_{&clock_};
  cache::testing::FakePeers peers_{&clock_};
  std::shared_ptr<const OwnerMap> owners_;
  std::unique_ptr<PeerSource> source_;
};

INSTANTIATE_TEST_SUITE_P(Cluster, SourceConformance,
                         ::testing::Values(SourceCase{
                             "Peers", [] { return std::make_unique<PeersUnderTest>(); }}),
                         [](const auto& c) { return c.param.name; });

}  // namespace
}  // namespace cairn::cache::conformance
