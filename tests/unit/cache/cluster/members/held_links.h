#pragma once
// Links whose calls wait until a test answers them.

#include <deque>
#include <utility>

#include "services/cache/cluster/peer/peer_links.h"

namespace cairn::cache::testing {

class HeldLinks final : public PeerLinks {
 public:
  struct AnnounceCall {
    std::string member;
    Announcement message;
    AnnounceDone done;
  };
  struct BumpsCall {
    std::string member;
    BumpPage page;
    BumpsDone done;
  };
  std::deque<AnnounceCall> announces;
  std::deque<BumpsCall> bumps;

  // The oldest call, which is no longer held.
  AnnounceCall TakeAnnounce() { return Take(announces); }
  BumpsCall TakeBumps() { return Take(bumps); }

  void SetAddresses(const std::map<std::string, std::string>&) override {}
  void Hello(const std::string&, const PeerHello&, TimePoint, HelloDone) override {}
  void Announce(const std::string& member, const Announcement& message, TimePoint,
                AnnounceDone done) override {
    announces.push_back({member, message, std::move(done)});
  }
  void ExchangeBumps(const std::string& member, const BumpPage& page, TimePoint,
                     BumpsDone done) override {
    bumps.push_back({member, page, std::move(done)});
  }
  void Find(const std::string&, const std::vector<WaymarkHash>&, const Patience&,
            FindDone) override {}
  void Match(const std::string&, const PeerNamespace&, std::span<const BlockKey>, PeerLease,
             const Patience&, MatchDone) override {}
  void Read(const std::string&, const PeerNamespace&, const BlockKey&, PeerBytes, const Patience&,
            Duration, BlockSink*, ReadDone) override {}

 private:
  template <typename Call>
  static Call Take(std::deque<Call>& calls) {
    Call call = std::move(calls.front());
    calls.pop_front();
    return call;
  }
};

}  // namespace cairn::cache::testing
