#include "services/router/events/batch_decoder.h"

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "services/router/events/msgpack_reader.h"

namespace cairn::router {
namespace {

using Kind = MsgpackReader::Kind;

constexpr size_t kLeastHashBytes = 8;
constexpr size_t kMostHashBytes = 64;
// Limit for one event's tokens, as a whole context of any model.
constexpr uint32_t kMostBlockTokens = 1 << 20;

// The fields that matter, in both encodings.
enum class Field : uint8_t {
  kHashes,
  kParent,
  kTokens,
  kBlockSize,
  kAdapter,  // Nil unless the blocks depend on an adapter or a salt.
  kMedium,
  kExtraKeys,
  kGroup,
  kSpecKind,
  kSlidingWindow,
  kLocality,
  kExtraKeysOrSession,  // In arrays, of vLLM or SGLang.
  kGroupOrAdapter,      // The same.
  kOther,
};

struct FieldName {
  std::string_view name;
  Field field;
};

constexpr std::array kNames = {
    FieldName{"block_hashes", Field::kHashes},
    FieldName{"parent_block_hash", Field::kParent},
    FieldName{"token_ids", Field::kTokens},
    FieldName{"block_size", Field::kBlockSize},
    FieldName{"lora_id", Field::kAdapter},
    FieldName{"lora_name", Field::kAdapter},
    FieldName{"cache_salt", Field::kAdapter},
    FieldName{"medium", Field::kMedium},
    FieldName{"extra_keys", Field::kExtraKeys},
    FieldName{"group_idx", Field::kGroup},
    FieldName{"kv_cache_spec_kind", Field::kSpecKind},
    FieldName{"kv_cache_spec_sliding_window", Field::kSlidingWindow},
    FieldName{"locality", Field::kLocality},
};

// The values of arrays after the name. vLLM and SGLang agree on the first six. After these vLLM has
// lora_name, extra_keys, group_idx, and so on; SGLang has cache_salt, session_id and lora_name.
constexpr std::array kStoredOrder = {
    Field::kHashes,         Field::kParent,   Field::kTokens,        Field::kBlockSize,
    Field::kAdapter,        Field::kMedium,   Field::kAdapter,       Field::kExtraKeysOrSession,
    Field::kGroupOrAdapter, Field::kSpecKind, Field::kSlidingWindow, Field::kLocality};
constexpr std::array kRemovedOrder = {Field::kHashes, Field::kMedium, Field::kGroup,
                                      Field::kLocality};

std::string_view NameOf(Field field) {
  for (const FieldName& one : kNames) {
    if (one.field == field) return one.name;
  }
  return "value";
}

struct Word {
  std::string_view word;
  TierKind tier;
  bool remote;
};
constexpr std::array kMedia = {
    Word{"GPU", TierKind::kDevice, false},      Word{"CPU", TierKind::kHost, false},
    Word{"CPU_PINNED", TierKind::kHost, false}, Word{"STORAGE", TierKind::kDisk, false},
    Word{"DISK", TierKind::kDisk, false},       Word{"EXTERNAL", TierKind::kDisk, true},
};

std::optional<EngineMedium> MediumOf(std::string_view word) {
  for (const Word& one : kMedia) {
    const bool same = std::ranges::equal(word, one.word, [](char a, char b) {
      return (a >= 'a' && a <= 'z' ? static_cast<char>(a - 'a' + 'A') : a) == b;
    });
    if (same) return EngineMedium{.tier = one.tier, .remote = one.remote};
  }
  return std::nullopt;
}

// Sets what a group of this kind needs. A token of a window of N sees the N - 1 before it.
void SetKind(std::string_view kind, std::optional<uint32_t> window, EngineGroup* group) {
  using GroupKind = EngineGroup::Kind;
  const bool windows = kind == "sliding_window" || kind == "sliding_window_mla";
  if (kind == "full_attention" || kind == "mla_attention" || kind == "sink_full_attention") {
    group->kind = GroupKind::kFull;
  } else if ((windows || kind.empty()) && window) {
    group->kind = GroupKind::kTail;
    group->tail_tokens = std::max(*window, 2u) - 1;
  } else if (kind == "mamba") {
    group->kind = GroupKind::kTail;
    group->tail_tokens = 1;
  } else if (!kind.empty()) {
    group->kind = GroupKind::kOther;
  }
}

Result<EngineHash> TakeHash(MsgpackReader& reader) {
  CAIRN_ASSIGN_OR_RETURN(const Kind kind, reader.Next());
  if (kind == Kind::kInteger) {
    CAIRN_ASSIGN_OR_RETURN(const MsgpackReader::Integer value, reader.TakeInteger());
    return EngineHash{.low = value.bits};
  }
  if (kind != Kind::kBytes && kind != Kind::kText) {
    return InvalidArgument("got {}, expected an integer or bytes", MsgpackReader::Name(kind));
  }
  CAIRN_ASSIGN_OR_RETURN(const std::string_view bytes, reader.TakeBytes());
  if (bytes.size() < kLeastHashBytes || bytes.size() > kMostHashBytes) {
    return InvalidArgument("got {} bytes, expected {} to {}", bytes.size(), kLeastHashBytes,
                           kMostHashBytes);
  }
  const auto number = [](std::string_view eight) {
    uint64_t value = 0;
    for (const char c : eight) value = value << 8 | static_cast<uint8_t>(c);
    return value;
  };
  EngineHash hash{.low = number(bytes.substr(bytes.size() - 8))};
  if (bytes.size() >= 16) hash.high = number(bytes.substr(bytes.size() - 16, 8));
  return hash;
}

// `take(i)` for each value of an array. Errors get the index.
template <typename Take>
Status TakeEach(MsgpackReader& reader, const Take& take) {
  CAIRN_ASSIGN_OR_RETURN(const uint32_t count, reader.TakeArray());
  for (uint32_t i = 0; i < count; ++i) {
    const Status status = take(count);
    if (!status.ok()) return InvalidArgument("[{}]: {}", i, Message(status));
  }
  return OkStatus();
}

Status TakeHashes(MsgpackReader& reader, std::vector<EngineHash>* hashes) {
  hashes->clear();
  return TakeEach(reader, [&](uint32_t count) -> Status {
    if (hashes->empty()) hashes->reserve(count);
    CAIRN_ASSIGN_OR_RETURN(hashes->emplace_back(), TakeHash(reader));
    return OkStatus();
  });
}

Status TakeTokens(MsgpackReader& reader, std::vector<int32_t>* tokens) {
  tokens->clear();
  return TakeEach(reader, [&](uint32_t count) -> Status {
    if (tokens->empty()) tokens->reserve(count);
    CAIRN_ASSIGN_OR_RETURN(const uint64_t token,
                           reader.TakeNumber(std::numeric_limits<int32_t>::max()));
    tokens->push_back(static_cast<int32_t>(token));
    return OkStatus();
  });
}

// Values of an event while it is read: its two kinds have most of them in common.
struct Values {
  EngineBlocksStored stored = {};
  bool has_hashes = false;
  bool has_tokens = false;
  bool has_block_size = false;
  bool special = false;                     // An adapter, or a salt.
  std::optional<uint32_t> plain_keys = {};  // First blocks without keys of their own.
  std::string_view spec_kind = {};          // "": not told.
  std::optional<uint32_t> window = {};
  bool remote = false;
};

// The number of first blocks whose entry is nil or empty. Each entry is a list, or nil.
Status TakeExtraKeys(MsgpackReader& reader, std::optional<uint32_t>* plain) {
  if (reader.TakeNil()) return OkStatus();
  uint32_t nothing = 0;
  bool only_nothing = true;
  CAIRN_RETURN_IF_ERROR(TakeEach(reader, [&](uint32_t) -> Status {
    MsgpackReader look = reader;
    CAIRN_ASSIGN_OR_RETURN(const Kind kind, look.Next());
    bool empty = kind == Kind::kNil;
    if (kind == Kind::kArray) {
      CAIRN_ASSIGN_OR_RETURN(const uint32_t count, look.TakeArray());
      empty = count == 0;
    }
    only_nothing = only_nothing && empty;
    if (only_nothing) ++nothing;
    return reader.Skip();
  }));
  if (!only_nothing) *plain = nothing;
  return OkStatus();
}

// The meaning of a place of an array where vLLM and SGLang differ: their types differ, too.
Result<Field> Resolve(const MsgpackReader& reader, Field field) {
  if (field != Field::kExtraKeysOrSession && field != Field::kGroupOrAdapter) return field;
  CAIRN_ASSIGN_OR_RETURN(const Kind kind, reader.Next());
  if (field == Field::kExtraKeysOrSession) {
    return kind == Kind::kArray ? Field::kExtraKeys : Field::kOther;
  }
  return kind == Kind::kInteger ? Field::kGroup : Field::kAdapter;
}

// A text, or "" for nil.
Result<std::string_view> TakeTextOrNil(MsgpackReader& reader) {
  if (reader.TakeNil()) return std::string_view();
  return reader.TakeText();
}

Status TakeParent(MsgpackReader& reader, std::optional<EngineHash>* parent) {
  parent->reset();
  if (reader.TakeNil()) return OkStatus();
  CAIRN_ASSIGN_OR_RETURN(*parent, TakeHash(reader));
  return OkStatus();
}

Status TakeMedium(MsgpackReader& reader, std::optional<EngineMedium>* medium) {
  if (reader.TakeNil()) return OkStatus();
  CAIRN_ASSIGN_OR_RETURN(const std::string_view word, reader.TakeText());
  *medium = MediumOf(word);
  return OkStatus();
}

Status TakeSize(MsgpackReader& reader, uint64_t most, uint32_t* size) {
  CAIRN_ASSIGN_OR_RETURN(const uint64_t number, reader.TakeNumber(most));
  *size = static_cast<uint32_t>(number);
  return OkStatus();
}

Status TakeWindow(MsgpackReader& reader, std::optional<uint32_t>* window) {
  if (reader.TakeNil()) return OkStatus();
  return TakeSize(reader, std::numeric_limits<uint32_t>::max(), &window->emplace());
}

Status TakeSpecKind(MsgpackReader& reader, std::string_view* kind) {
  CAIRN_ASSIGN_OR_RETURN(*kind, TakeTextOrNil(reader));
  return OkStatus();
}

Status TakeLocality(MsgpackReader& reader, bool* remote) {
  CAIRN_ASSIGN_OR_RETURN(const std::string_view word, TakeTextOrNil(reader));
  *remote = word == "REMOTE";
  return OkStatus();
}

// `*told`: it was something else than nil.
Status SkipOrNil(MsgpackReader& reader, bool* told) {
  if (reader.TakeNil()) return OkStatus();
  *told = true;
  return reader.Skip();
}

Status TakeField(MsgpackReader& reader, Field field, Values* values) {
  EngineBlocksStored& stored = values->stored;
  switch (field) {
    case Field::kHashes:
      values->has_hashes = true;
      return TakeHashes(reader, &stored.hashes);
    case Field::kParent:
      return TakeParent(reader, &stored.parent);
    case Field::kTokens:
      values->has_tokens = true;
      return TakeTokens(reader, &stored.tokens);
    case Field::kBlockSize:
      values->has_block_size = true;
      return TakeSize(reader, kMostBlockTokens, &stored.block_tokens);
    case Field::kAdapter:
      return SkipOrNil(reader, &values->special);
    case Field::kMedium:
      return TakeMedium(reader, &stored.medium);
    case Field::kExtraKeys:
      return TakeExtraKeys(reader, &values->plain_keys);
    case Field::kGroup:
      if (reader.TakeNil()) return OkStatus();
      return TakeSize(reader, std::numeric_limits<uint32_t>::max(), &stored.group.index);
    case Field::kSpecKind:
      return TakeSpecKind(reader, &values->spec_kind);
    case Field::kSlidingWindow:
      return TakeWindow(reader, &values->window);
    case Field::kLocality:
      return TakeLocality(reader, &values->remote);
    case Field::kExtraKeysOrSession:
    case Field::kGroupOrAdapter:
    case Field::kOther:
      break;
  }
  return reader.Skip();
}

Status TakeNamed(MsgpackReader& reader, Field field, std::string_view name, Values* values) {
  const Status status = TakeField(reader, field, values);
  if (status.ok()) return status;
  const std::string text = Message(status);
  return InvalidArgument("{}{}{}", name, text.starts_with('[') ? "" : ": ", text);
}

// From what was read to what it means. `stored` is false for BlockRemoved.
Result<EngineEvent> MakeEvent(Values values, bool stored) {
  EngineBlocksStored& event = values.stored;
  if (!values.has_hashes) return InvalidArgument("block_hashes: missing");
  SetKind(values.spec_kind, values.window, &event.group);
  if (event.medium && values.remote) event.medium->remote = true;
  if (!stored) {
    return EngineBlocksRemoved{
        .hashes = std::move(event.hashes), .medium = event.medium, .group = event.group};
  }
  if (!values.has_tokens) return InvalidArgument("token_ids: missing");
  if (!values.has_block_size) return InvalidArgument("block_size: missing");
  const size_t expected = event.hashes.size() * event.block_tokens;
  if (!event.tokens.empty() && event.tokens.size() != expected) {
    if (KeepsAllBlocks(event.group)) {
      return InvalidArgument("token_ids: got {} tokens, expected {} for {} blocks of {}",
                             event.tokens.size(), expected, event.hashes.size(),
                             event.block_tokens);
    }
    // vLLM sends the tokens of all blocks, and the hashes of those that it keeps.
    event.tokens.clear();
  }
  const auto blocks = static_cast<uint32_t>(event.hashes.size());
  event.plain_blocks = values.special ? 0 : std::min(blocks, values.plain_keys.value_or(blocks));
  return EngineEvent(std::move(event));
}

enum class Type : uint8_t { kStored, kRemoved, kCleared, kUnknown };

Type TypeOf(std::string_view name) {
  if (name == "BlockStored") return Type::kStored;
  if (name == "BlockRemoved") return Type::kRemoved;
  if (name == "AllBlocksCleared") return Type::kCleared;
  return Type::kUnknown;
}

// nullopt: of an unknown kind.
Result<std::optional<EngineEvent>> Finish(Type type, Values values) {
  if (type == Type::kUnknown) return std::optional<EngineEvent>();
  if (type == Type::kCleared) return std::optional<EngineEvent>(EngineBlocksCleared{});
  CAIRN_ASSIGN_OR_RETURN(EngineEvent event, MakeEvent(std::move(values), type == Type::kStored));
  return std::optional<EngineEvent>(std::move(event));
}

Result<std::optional<EngineEvent>> TakeArrayEvent(MsgpackReader& reader) {
  CAIRN_ASSIGN_OR_RETURN(const uint32_t count, reader.TakeArray());
  if (count == 0) return InvalidArgument("got an empty array, expected the event's name first");
  CAIRN_ASSIGN_OR_RETURN(const std::string_view name, reader.TakeText());
  const Type type = TypeOf(name);
  const std::span<const Field> order = type == Type::kStored ? std::span<const Field>(kStoredOrder)
                                       : type == Type::kRemoved
                                           ? std::span<const Field>(kRemovedOrder)
                                           : std::span<const Field>();
  Values values;
  for (uint32_t i = 0; i + 1 < count; ++i) {
    CAIRN_ASSIGN_OR_RETURN(const Field field,
                           Resolve(reader, i < order.size() ? order[i] : Field::kOther));
    CAIRN_RETURN_IF_ERROR(TakeNamed(reader, field, NameOf(field), &values));
  }
  return Finish(type, std::move(values));
}

// The tag may come last, so that fields are read before it is known what they belong to.
Result<std::optional<EngineEvent>> TakeMapEvent(MsgpackReader& reader) {
  CAIRN_ASSIGN_OR_RETURN(const uint32_t count, reader.TakeMap());
  MsgpackReader look = reader;
  std::optional<Type> type;
  for (uint32_t i = 0; i < count && !type; ++i) {
    CAIRN_ASSIGN_OR_RETURN(const std::string_view name, look.TakeText());
    if (name != "type") {
      CAIRN_RETURN_IF_ERROR(look.Skip());
      continue;
    }
    CAIRN_ASSIGN_OR_RETURN(const std::string_view text, look.TakeText());
    type = TypeOf(text);
  }
  if (!type) return InvalidArgument("type: missing");
  Values values;
  for (uint32_t i = 0; i < count; ++i) {
    CAIRN_ASSIGN_OR_RETURN(const std::string_view name, reader.TakeText());
    Field field = Field::kOther;
    if (*type == Type::kStored || *type == Type::kRemoved) {
      const auto found = std::ranges::find(kNames, name, &FieldName::name);
      if (found != kNames.end()) field = found->field;
    }
    CAIRN_RETURN_IF_ERROR(TakeNamed(reader, field, name.substr(0, 64), &values));
  }
  return Finish(*type, std::move(values));
}

Status TakeEvents(MsgpackReader& reader, EngineEventBatch* batch) {
  return TakeEach(reader, [&](uint32_t) -> Status {
    CAIRN_ASSIGN_OR_RETURN(const Kind kind, reader.Next());
    if (kind != Kind::kMap && kind != Kind::kArray) {
      return InvalidArgument("got {}, expected a map or an array", MsgpackReader::Name(kind));
    }
    auto event = kind == Kind::kMap ? TakeMapEvent(reader) : TakeArrayEvent(reader);
    if (!event.ok()) return event.status();
    if (*event) {
      batch->events.push_back(*std::move(*event));
    } else {
      ++batch->unknown;
    }
    return OkStatus();
  });
}

}  // namespace

Result<EngineEventBatch> DecodeBatch(std::string_view message) {
  if (message.size() > kMostBatchBytes) {
    return InvalidArgument("batch: got {} bytes, expected at most {}", message.size(),
                           kMostBatchBytes);
  }
  MsgpackReader reader(message);
  const auto count = reader.TakeArray();
  if (!count.ok()) return Annotate(count.status(), "batch");
  if (*count < 2) return InvalidArgument("batch: got {} values, expected 2 or 3", *count);
  const Status time = reader.TakeReal();
  if (!time.ok()) return Annotate(time, "ts");
  EngineEventBatch batch;
  const Status events = TakeEvents(reader, &batch);
  if (!events.ok()) {
    return InvalidArgument("events{}{}", Message(events).starts_with('[') ? "" : ": ",
                           Message(events));
  }
  for (uint32_t i = 2; i < *count; ++i) CAIRN_RETURN_IF_ERROR(reader.Skip());
  if (!reader.empty()) return InvalidArgument("batch: got {} bytes after its end", reader.left());
  return batch;
}

}  // namespace cairn::router
