#include "services/cache/serve/rpc/peer_convert.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "protocol/wire/convert.h"
#include "services/cache/serve/rpc/request_fields.h"

namespace cairn::cache {
namespace {

constexpr size_t kLongestCluster = 64;
constexpr size_t kLongestId = 128;
constexpr size_t kLongestAddress = 300;
constexpr size_t kLongestPlace = 128;
constexpr size_t kMostNames = 4096;
constexpr size_t kMostParts = 65536;

Status CheckLength(std::string_view text, size_t least, size_t most, const char* field) {
  if (text.size() >= least && text.size() <= most) return OkStatus();
  return InvalidArgument("field '{}': got {} characters, expected {} to {}", field, text.size(),
                         least, most);
}

template <typename Waymarks>
void AddWaymarks(const Waymarks& hashes, TierClass tier, std::vector<AnnouncedWaymark>* out) {
  for (const WaymarkHash hash : hashes) out->push_back({hash, tier});
}

}  // namespace

void ToProto(const PeerCaller& caller, v1::PeerCaller* out) {
  out->set_cluster(caller.cluster);
  out->set_node_id(caller.id);
  out->set_incarnation(caller.incarnation);
}

Result<PeerCaller> ToCaller(const v1::PeerCaller& caller) {
  CAIRN_RETURN_IF_ERROR(CheckLength(caller.cluster(), 1, kLongestCluster, "caller.cluster"));
  CAIRN_RETURN_IF_ERROR(CheckLength(caller.node_id(), 1, kLongestId, "caller.node_id"));
  return PeerCaller{
      .cluster = caller.cluster(), .id = caller.node_id(), .incarnation = caller.incarnation()};
}

void ToProto(const PeerHello& hello, v1::HelloRequest* out) {
  ToProto(hello.caller, out->mutable_caller());
  out->set_epoch(hello.epoch);
  out->set_oldest_version(hello.oldest_version);
  out->set_newest_version(hello.newest_version);
  out->set_address(hello.address);
  out->set_host(hello.host);
  out->set_zone(hello.zone);
  out->set_view_digest(hello.view_digest);
  out->set_bumps_digest(hello.bumps_digest);
  out->set_leaving(hello.leaving);
  out->set_program(hello.program);
}

Result<PeerHello> ToHello(const v1::HelloRequest& hello) {
  PeerHello to;
  CAIRN_ASSIGN_OR_RETURN(to.caller, ToCaller(hello.caller()));
  CAIRN_RETURN_IF_ERROR(CheckLength(hello.address(), 1, kLongestAddress, "address"));
  CAIRN_RETURN_IF_ERROR(CheckLength(hello.host(), 0, kLongestPlace, "host"));
  CAIRN_RETURN_IF_ERROR(CheckLength(hello.zone(), 0, kLongestPlace, "zone"));
  CAIRN_RETURN_IF_ERROR(CheckLength(hello.program(), 0, kLongestPlace, "program"));
  to.epoch = hello.epoch();
  to.oldest_version = hello.oldest_version();
  to.newest_version = hello.newest_version();
  to.address = hello.address();
  to.host = hello.host();
  to.zone = hello.zone();
  to.view_digest = hello.view_digest();
  to.bumps_digest = hello.bumps_digest();
  to.leaving = hello.leaving();
  to.program = hello.program();
  return to;
}

void ToProto(const Announcement& message, v1::AnnounceRequest* out) {
  out->set_sequence(message.sequence);
  out->set_begins(message.begins);
  out->set_complete(message.complete);
  for (const AnnouncedWaymark& add : message.adds) {
    if (add.tier == TierClass::kMemory) {
      out->add_memory_adds(add.hash);
    } else {
      out->add_disk_adds(add.hash);
    }
  }
  for (const AnnouncedWaymark& change : message.changes) {
    if (change.tier == TierClass::kMemory) {
      out->add_now_in_memory(change.hash);
    } else {
      out->add_now_on_disk(change.hash);
    }
  }
  out->mutable_removes()->Add(message.removes.begin(), message.removes.end());
  out->set_count(message.count);
  out->set_check(message.check);
}

Announcement ToAnnouncement(const v1::AnnounceRequest& message) {
  Announcement to{
      .sequence = message.sequence(), .begins = message.begins(), .complete = message.complete()};
  AddWaymarks(message.memory_adds(), TierClass::kMemory, &to.adds);
  AddWaymarks(message.disk_adds(), TierClass::kDisk, &to.adds);
  AddWaymarks(message.now_in_memory(), TierClass::kMemory, &to.changes);
  AddWaymarks(message.now_on_disk(), TierClass::kDisk, &to.changes);
  to.removes.assign(message.removes().begin(), message.removes().end());
  to.count = message.count();
  to.check = message.check();
  return to;
}

void ToProto(const FoundHolders& found, v1::FindResponse* out) {
  std::map<std::string, uint32_t> numbers;
  for (const std::vector<Holder>& holders : found.holders) {
    v1::FindResponse::Holders* const to = out->add_holders();
    for (const Holder& holder : holders) {
      const auto [it, added] =
          numbers.try_emplace(holder.id, static_cast<uint32_t>(out->members_size()));
      if (added) out->add_members(holder.id);
      to->add_member(it->second);
      to->add_tier(static_cast<v1::PeerTier>(holder.tier));
    }
  }
  out->set_young(found.young);
}

Result<FoundHolders> ToFoundHolders(const v1::FindResponse& found, size_t waymarks) {
  if (static_cast<size_t>(found.holders_size()) != waymarks) {
    return InvalidArgument("field 'holders': got {}, expected {}", found.holders_size(), waymarks);
  }
  if (static_cast<size_t>(found.members_size()) > kMostNames) {
    return InvalidArgument("field 'members': got {}, expected at most {}", found.members_size(),
                           kMostNames);
  }
  for (const std::string& id : found.members()) {
    CAIRN_RETURN_IF_ERROR(CheckLength(id, 1, kLongestId, "members"));
  }
  FoundHolders to{.holders = {}, .young = found.young()};
  for (const v1::FindResponse::Holders& holders : found.holders()) {
    std::vector<Holder>& list = to.holders.emplace_back();
    const int count = std::min<int>({holders.member_size(), holders.tier_size(),
                                     static_cast<int>(DirectoryTable::kMostHolders)});
    for (int i = 0; i < count; ++i) {
      if (holders.member(i) >= static_cast<uint32_t>(found.members_size())) {
        return InvalidArgument("field 'holders.member': got {}, expected less than {}",
                               holders.member(i), found.members_size());
      }
      const int tier = std::clamp<int>(holders.tier(i), 0, static_cast<int>(TierClass::kCold));
      list.push_back(
          {found.members(static_cast<int>(holders.member(i))), static_cast<TierClass>(tier)});
    }
  }
  return to;
}

void ToProto(const PeerMatch& match, v1::PeerMatchResponse* out) {
  out->set_blocks(match.blocks);
  out->set_bytes(match.bytes);
  out->set_seconds(match.seconds);
  out->set_memory_blocks(match.memory_blocks);
  out->set_memory_bytes(match.memory_bytes);
}

PeerMatch ToPeerMatch(const v1::PeerMatchResponse& match) {
  return {.blocks = match.blocks(),
          .bytes = match.bytes(),
          .seconds = std::isfinite(match.seconds()) ? std::max(0.0, match.seconds()) : 0,
          .memory_blocks = std::min(match.memory_blocks(), match.blocks()),
          .memory_bytes = std::min(match.memory_bytes(), match.bytes())};
}

void ToProto(const BumpPage& page, v1::BumpPage* out) {
  for (const Bump& bump : page.bumps) {
    v1::Bump* const to = out->add_bumps();
    to->set_fingerprint(std::string(bump.fingerprint.View()));
    to->set_id(bump.id.data(), bump.id.size());
  }
  out->set_next(page.next);
  out->set_digest(page.digest);
}

Result<BumpPage> ToBumpPage(const v1::BumpPage& page) {
  if (static_cast<size_t>(page.bumps_size()) > BumpPage::kMost) {
    return InvalidArgument("field 'bumps': got {}, expected at most {}", page.bumps_size(),
                           BumpPage::kMost);
  }
  BumpPage to{.bumps = {}, .next = page.next(), .digest = page.digest()};
  for (const v1::Bump& bump : page.bumps()) {
    Bump& added = to.bumps.emplace_back();
    CAIRN_ASSIGN_OR_RETURN(added.fingerprint,
                           Digest::FromBytes(bump.fingerprint(), "bumps.fingerprint"));
    if (bump.id().size() != added.id.size()) {
      return InvalidArgument("field 'bumps.id': got {} bytes, expected {}", bump.id().size(),
                             added.id.size());
    }
    std::copy(bump.id().begin(), bump.id().end(), added.id.begin());
  }
  return to;
}

void ToProto(const SourceBlock& block, v1::PeerReadFrame::Block* out) {
  if (block.parent) out->set_parent(std::string(block.parent->View()));
  out->set_at_start(block.at_start);
  out->set_recompute_seconds(block.recompute_seconds);
  for (const SourceBlock::Part& part : block.parts) {
    v1::PeerReadFrame::Part* const to = out->add_parts();
    wire::ToProto(part.rect, to->mutable_rect());
    to->set_bytes(part.bytes);
  }
}

Result<SourceBlock> ToSourceBlock(const v1::PeerReadFrame::Block& block) {
  SourceBlock to;
  CAIRN_ASSIGN_OR_RETURN(to.parent, ToOptionalDigest(block.parent(), "block.parent"));
  to.at_start = block.at_start();
  to.recompute_seconds =
      std::isfinite(block.recompute_seconds()) ? std::max(0.f, block.recompute_seconds()) : 0.f;
  if (block.parts_size() < 1 || static_cast<size_t>(block.parts_size()) > kMostParts) {
    return InvalidArgument("field 'block.parts': got {}, expected 1 to {}", block.parts_size(),
                           kMostParts);
  }
  for (const v1::PeerReadFrame::Part& part : block.parts()) {
    SourceBlock::Part& added = to.parts.emplace_back();
    CAIRN_ASSIGN_OR_RETURN(added.rect, wire::FromProto(part.rect(), "block.parts.rect"));
    if (part.bytes() < 1 || part.bytes() > kMaxPartBytes) {
      return InvalidArgument("field 'block.parts.bytes': got {}, expected 1 to {}", part.bytes(),
                             kMaxPartBytes);
    }
    added.bytes = part.bytes();
  }
  return to;
}

void ToProto(const LentPlace& place, v1::PeerReadFrame::Lent* out) {
  out->set_memory(place.memory);
  out->set_offset(place.offset);
  out->set_bytes(place.bytes);
}

Result<LentPlace> ToLentPlace(const v1::PeerReadFrame::Lent& lent, const SourceBlock& block) {
  const uint64_t expected = LentOffsets(block).back();
  if (lent.bytes() != expected) {
    return InvalidArgument("field 'lent.bytes': got {}, expected {} for these parts", lent.bytes(),
                           expected);
  }
  return LentPlace{.memory = lent.memory(), .offset = lent.offset(), .bytes = lent.bytes()};
}

}  // namespace cairn::cache
