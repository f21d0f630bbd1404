// Any bytes as a batch of an engine's KV events: an error that says where something is wrong, or
// events whose counts agree with each other, which a view takes, and which mean the same when they
// are written again by another library. That library also says what is no MessagePack.

#include <msgpack.hpp>
#include <optional>

#include "services/router/events/batch_decoder.h"
#include "services/router/events/engine_view.h"
#include "services/router/events/msgpack_reader.h"
#include "tests/fuzz/input.h"

using cairn::fuzz::Expect;
using namespace cairn::router;

namespace {

using Packer = msgpack::packer<msgpack::sbuffer>;

void PackHash(const EngineHash& hash, Packer* packer) {
  if (hash.high == 0) {
    packer->pack(hash.low);
    return;
  }
  std::string bytes;
  for (const uint64_t half : {hash.high, hash.low}) {
    for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(half >> shift);
  }
  packer->pack_bin(16);
  packer->pack_bin_body(bytes.data(), 16);
}

void PackHashes(const std::vector<EngineHash>& hashes, Packer* packer) {
  packer->pack_array(static_cast<uint32_t>(hashes.size()));
  for (const EngineHash& hash : hashes) PackHash(hash, packer);
}

std::string MediumName(const std::optional<EngineMedium>& medium) {
  if (!medium) return "?";
  static const char* const kNames[] = {"CPU", "STORAGE", "GPU"};
  return kNames[static_cast<size_t>(medium->tier)];
}

void PackGroup(const EngineGroup& group, Packer* packer) {
  using GroupKind = EngineGroup::Kind;
  packer->pack("group_idx");
  packer->pack(group.index);
  packer->pack("kv_cache_spec_kind");
  switch (group.kind) {
    case GroupKind::kUntold:
      packer->pack_nil();
      break;
    case GroupKind::kFull:
      packer->pack("full_attention");
      break;
    case GroupKind::kTail:
      packer->pack("sliding_window");
      break;
    case GroupKind::kOther:
      packer->pack("unknown");
      break;
  }
  packer->pack("kv_cache_spec_sliding_window");
  if (group.kind == GroupKind::kTail) {
    packer->pack(group.tail_tokens + 1);
  } else {
    packer->pack_nil();
  }
}

template <typename Event>
void PackPlace(const Event& event, Packer* packer) {
  packer->pack("medium");
  packer->pack(MediumName(event.medium));
  packer->pack("locality");
  packer->pack(event.medium && event.medium->remote ? "REMOTE" : "LOCAL");
  PackGroup(event.group, packer);
  packer->pack("block_hashes");
  PackHashes(event.hashes, packer);
}

void Pack(const EngineBlocksStored& event, Packer* packer) {
  packer->pack_map(11);
  PackPlace(event, packer);
  packer->pack("parent_block_hash");
  if (event.parent) {
    PackHash(*event.parent, packer);
  } else {
    packer->pack_nil();
  }
  packer->pack("token_ids");
  packer->pack(event.tokens);
  packer->pack("block_size");
  packer->pack(event.block_tokens);
  packer->pack("extra_keys");
  packer->pack_array(static_cast<uint32_t>(event.hashes.size()));
  for (size_t i = 0; i < event.hashes.size(); ++i) {
    if (i < event.plain_blocks) {
      packer->pack_nil();
    } else {
      packer->pack(std::vector<int>{1});
    }
  }
  packer->pack("type");
  packer->pack("BlockStored");
}

void Pack(const EngineBlocksRemoved& event, Packer* packer) {
  packer->pack_map(7);
  packer->pack("type");
  packer->pack("BlockRemoved");
  PackPlace(event, packer);
}

void Pack(const EngineBlocksCleared&, Packer* packer) {
  packer->pack(std::vector<std::string>{"AllBlocksCleared"});
}

std::string Write(const EngineEventBatch& batch) {
  msgpack::sbuffer buffer;
  Packer packer(buffer);
  packer.pack_array(2);
  packer.pack(0.5);
  packer.pack_array(static_cast<uint32_t>(batch.events.size()));
  for (const EngineEvent& event : batch.events) {
    std::visit([&](const auto& one) { Pack(one, &packer); }, event);
  }
  return {buffer.data(), buffer.size()};
}

// How many bytes the first value has, in the other library's eyes. nullopt: it is none. The library
// knows no bound of depth here, so that only flat enough values are compared.
std::optional<size_t> OtherSize(std::string_view bytes) {
  msgpack::null_visitor visitor;
  size_t size = 0;
  if (!msgpack::parse(bytes.data(), bytes.size(), size, visitor)) return std::nullopt;
  return size;
}

void CompareReaders(std::string_view bytes) {
  MsgpackReader reader(bytes);
  const cairn::Status status = reader.Skip();
  if (status.ok()) {
    const auto other = OtherSize(bytes);
    Expect(other && *other == bytes.size() - reader.left());
  } else if (cairn::Message(status) != "values are nested too deep") {
    Expect(!OtherSize(bytes));
  }
}

}  // namespace

CAIRN_FUZZ_ENTRY(engine_events)(const uint8_t* data, size_t size) {
  const auto bytes = cairn::fuzz::Copy(cairn::fuzz::Text(data, size));
  const std::string_view message(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  CompareReaders(message);
  const auto batch = DecodeBatch(message);
  if (!batch.ok()) {
    Expect(batch.status().code() == cairn::StatusCode::kInvalidArgument);
    Expect(!batch.status().message().empty() && batch.status().message().size() < 512);
    return 0;
  }
  for (const EngineEvent& event : batch->events) {
    const auto* stored = std::get_if<EngineBlocksStored>(&event);
    if (stored == nullptr) continue;
    Expect(stored->plain_blocks <= stored->hashes.size());
    Expect(stored->tokens.empty() ||
           stored->tokens.size() == stored->hashes.size() * stored->block_tokens);
  }
  const auto again = DecodeBatch(Write(*batch));
  Expect(again.ok() && again->events == batch->events);

  uint64_t added = 0, removed = 0;
  EngineView view(
      {.member = "engine", .space = MakeEngineNamespace(EngineKeys::kTokens, 4), .max_blocks = 16},
      [&](const cairn::client::MemberEvent& event, uint32_t) {
        if (event.kind != cairn::client::MemberEvent::Kind::kEvent) return;
        ++(event.event.kind == cairn::CacheEvent::Kind::kTierAdded ? added : removed);
      });
  view.Apply(*batch);
  view.Apply(*batch);
  Expect(view.numbers().blocks <= 16 && removed <= added);
  return 0;
}
