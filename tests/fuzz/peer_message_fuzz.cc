// Any bytes as what another member of a cluster sends: an error that names a field, or values in
// the ranges that this member counts on, which go onto the wire again with the same meaning. Lies
// about what a member holds never leave the directory with more than it may keep.
//
// First byte: which message. The rest is the message; announcements: several, each after a byte
// with its length in units of 4 bytes, where bits of one more byte repair its number and its sums.

#include <cmath>

#include "cairn/v1/peer.pb.h"
#include "services/cache/serve/rpc/peer_convert.h"
#include "tests/fuzz/input.h"

namespace {

using namespace cairn;
using fuzz::Expect;

template <typename Message, typename Use>
void With(std::string_view bytes, Use use) {
  Message message;
  if (message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) use(message);
}

void Hello(const v1::HelloRequest& message) {
  const auto hello = cache::ToHello(message);
  if (!hello.ok()) return;
  Expect(!hello->caller.cluster.empty() && hello->caller.cluster.size() <= 64);
  Expect(!hello->caller.id.empty() && hello->caller.id.size() <= 128);
  Expect(!hello->address.empty() && hello->address.size() <= 300);
  Expect(hello->host.size() <= 128 && hello->zone.size() <= 128 && hello->program.size() <= 128);
  v1::HelloRequest again;
  cache::ToProto(*hello, &again);
  const auto same = fuzz::Get(cache::ToHello(again));
  Expect(same.caller == hello->caller && same.epoch == hello->epoch);
  Expect(same.address == hello->address && same.program == hello->program);
  Expect(same.view_digest == hello->view_digest && same.bumps_digest == hello->bumps_digest);
  Expect(same.leaving == hello->leaving);
}

void Find(const v1::FindResponse& message) {
  for (const size_t waymarks : {static_cast<size_t>(message.holders_size()), size_t{3}}) {
    const auto found = cache::ToFoundHolders(message, waymarks);
    if (!found.ok()) continue;
    Expect(found->holders.size() == waymarks);
    for (const std::vector<cache::Holder>& holders : found->holders) {
      Expect(holders.size() <= cache::DirectoryTable::kMostHolders);
      for (const cache::Holder& holder : holders) {
        Expect(!holder.id.empty() && holder.id.size() <= 128);
        Expect(holder.tier <= cache::TierClass::kCold);
      }
    }
    v1::FindResponse again;
    cache::ToProto(*found, &again);
    const auto same = fuzz::Get(cache::ToFoundHolders(again, waymarks));
    Expect(same.young == found->young);
    for (size_t i = 0; i < waymarks; ++i) {
      Expect(same.holders[i].size() == found->holders[i].size());
      for (size_t k = 0; k < same.holders[i].size(); ++k) {
        Expect(same.holders[i][k].id == found->holders[i][k].id);
        Expect(same.holders[i][k].tier == found->holders[i][k].tier);
      }
    }
  }
}

void Bumps(const v1::BumpPage& message) {
  const auto page = cache::ToBumpPage(message);
  if (!page.ok()) return;
  Expect(page->bumps.size() <= cache::BumpPage::kMost);
  v1::BumpPage again;
  cache::ToProto(*page, &again);
  const auto same = fuzz::Get(cache::ToBumpPage(again));
  Expect(same.bumps == page->bumps && same.next == page->next && same.digest == page->digest);
}

void Block(const v1::PeerReadFrame& frame) {
  if (!frame.has_block()) return;
  const auto block = cache::ToSourceBlock(frame.block());
  if (!block.ok()) return;
  Expect(!block->parts.empty());
  Expect(std::isfinite(block->recompute_seconds) && block->recompute_seconds >= 0);
  for (const auto& part : block->parts) Expect(part.bytes >= 1 && part.bytes <= 64u << 20);
  v1::PeerReadFrame again;
  cache::ToProto(*block, again.mutable_block());
  const auto same = fuzz::Get(cache::ToSourceBlock(again.block()));
  Expect(same.parent == block->parent && same.at_start == block->at_start);
  Expect(same.parts.size() == block->parts.size());
  for (size_t i = 0; i < same.parts.size(); ++i) {
    Expect(same.parts[i].rect == block->parts[i].rect);
    Expect(same.parts[i].bytes == block->parts[i].bytes);
  }
  const auto place = cache::ToLentPlace(frame.lent(), *block);
  if (!place.ok()) return;
  const auto offsets = cache::LentOffsets(*block);
  Expect(offsets.size() == block->parts.size() + 1 && offsets.back() == place->bytes);
  for (size_t i = 0; i < block->parts.size(); ++i) {
    Expect(offsets[i] + block->parts[i].bytes <= offsets[i + 1]);
  }
  v1::PeerReadFrame::Lent lent;
  cache::ToProto(*place, &lent);
  const auto same_place = fuzz::Get(cache::ToLentPlace(lent, *block));
  Expect(same_place.memory == place->memory && same_place.offset == place->offset);
}

void Match(const v1::PeerMatchResponse& message) {
  const cache::PeerMatch match = cache::ToPeerMatch(message);
  Expect(std::isfinite(match.seconds) && match.seconds >= 0);
  Expect(match.memory_blocks <= match.blocks && match.memory_bytes <= match.bytes);
}

// The waymarks that an honest holder would have told by now.
struct Told {
  uint64_t sequence = 0, count = 0, check = 0;
};

void Announcements(fuzz::Input input) {
  cache::Directory directory({.max_bytes = 1 << 20, .max_per_holder = 64});
  directory.SetMembers({"a", "b"});
  Told told;
  for (int messages = 0; !input.empty() && messages < 32; ++messages) {
    const uint8_t repair = input.U8();
    v1::AnnounceRequest message;
    const std::string_view bytes = input.Bytes(static_cast<size_t>(input.U8()) * 4);
    if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) continue;
    cache::Announcement announced = cache::ToAnnouncement(message);
    Expect(announced.size() == static_cast<size_t>(message.memory_adds_size()) +
                                   static_cast<size_t>(message.disk_adds_size()) +
                                   static_cast<size_t>(message.now_in_memory_size()) +
                                   static_cast<size_t>(message.now_on_disk_size()) +
                                   static_cast<size_t>(message.removes_size()));
    const std::string holder = (repair & 1) != 0 ? "b" : "a";
    if (announced.begins) told = {};
    if ((repair & 2) != 0) announced.sequence = told.sequence + 1;
    if ((repair & 4) != 0) {
      announced.count = told.count + announced.adds.size() - announced.removes.size();
      announced.check = told.check;
      for (const auto& add : announced.adds) announced.check ^= add.hash;
      for (const auto hash : announced.removes) announced.check ^= hash;
    }
    if (directory.Apply(holder, 1, announced).ok()) {
      told = {announced.sequence, announced.count, announced.check};
    }
    // Another holder's stream, or an older process, changes nothing.
    Expect(!directory.Apply("stranger", 1, announced).ok());
    (void)directory.SweepSome();
    Expect(directory.bytes() <= 2u << 20);
    std::vector<cache::WaymarkHash> asked;
    for (const auto& add : announced.adds) asked.push_back(add.hash);
    for (const auto& holders : directory.Find(asked)) {
      Expect(holders.size() <= cache::DirectoryTable::kMostHolders);
      for (const auto& found : holders) Expect(found.id == "a" || found.id == "b");
    }
  }
  // A member that leaves takes all with it.
  directory.SetMembers({});
  while (!directory.SweepSome()) {
  }
  Expect(directory.entries() == 0);
}

}  // namespace

CAIRN_FUZZ_ENTRY(peer_message)(const uint8_t* data, size_t size) {
  fuzz::Input input(data, size);
  switch (input.U8() % 6) {
    case 0:
      With<v1::HelloRequest>(input.Rest(), Hello);
      break;
    case 1:
      With<v1::FindResponse>(input.Rest(), Find);
      break;
    case 2:
      With<v1::BumpPage>(input.Rest(), Bumps);
      break;
    case 3:
      With<v1::PeerReadFrame>(input.Rest(), Block);
      break;
    case 4:
      With<v1::PeerMatchResponse>(input.Rest(), Match);
      break;
    default:
      Announcements(input);
  }
  return 0;
}
