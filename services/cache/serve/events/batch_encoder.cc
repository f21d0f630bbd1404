#include "services/cache/serve/events/batch_encoder.h"

#include "services/cache/serve/events/msgpack_writer.h"

namespace cairn::cache {
namespace {

// The node is no part of the engine: engines fetch from it.
constexpr std::string_view kLocality = "REMOTE", kOwner = "cairn";
constexpr std::string_view kFullAttention = "full_attention", kUnknown = "unknown";

uint64_t BitsOf(const BlockKey& hash, size_t first) {
  uint64_t bits = 0;
  for (size_t i = first; i < first + 8; ++i) bits = bits << 8 | hash.bytes[i];
  return bits;
}

// The fields of one event, in the order of the engine's class. Maps leave those out that have their
// default.
class EventFields {
 public:
  EventFields(EventEncoding encoding, MsgpackWriter* out) : encoding_(encoding), out_(*out) {}

  void Write(const KvEvent& event) {
    const EventShape& shape = event.shape;
    const bool vllm = shape.engine == EventEngine::kVllm;
    switch (shape.kind) {
      case EventShape::Kind::kStored:
        // The type counts, too.
        Begin("BlockStored", vllm ? (shape.group ? 12 : 10) : 7, vllm ? 15 : 10);
        Hashes(event);
        Field("parent_block_hash").Nil();
        Field("token_ids").Array(0);
        Field("block_size").Unsigned(shape.block_tokens);
        Field("lora_id").Nil();
        Field("medium").Text(shape.medium);
        if (!vllm) {
          Default("cache_salt");
          Default("session_id");
          return Default("lora_name");
        }
        Field("lora_name").Nil();
        Default("extra_keys");
        Group(shape.group);
        Kind(shape.group);
        Default("kv_cache_spec_sliding_window");
        Place();
        return Default("session_id");
      case EventShape::Kind::kRemoved:
        Begin("BlockRemoved", vllm ? (shape.group ? 6 : 5) : 3, vllm ? 6 : 3);
        Hashes(event);
        Field("medium").Text(shape.medium);
        if (!vllm) return;
        Group(shape.group);
        return Place();
      case EventShape::Kind::kCleared:
        return Begin("AllBlocksCleared", 1, 1);
    }
  }

 private:
  bool maps() const { return encoding_ == EventEncoding::kMaps; }
  void Begin(std::string_view type, size_t in_map, size_t in_array) {
    if (maps()) {
      out_.Map(in_map);
      out_.Text("type");
    } else {
      out_.Array(in_array);
    }
    out_.Text(type);
  }
  MsgpackWriter& Field(std::string_view name) {
    if (maps()) out_.Text(name);
    return out_;
  }
  void Default(std::string_view name) {
    if (!maps()) Field(name).Nil();
  }
  void Hashes(const KvEvent& event) {
    Field("block_hashes").Array(event.hashes.size());
    for (const BlockKey& hash : event.hashes) {
      switch (event.shape.hashes) {
        case HashForm::kLastBits:
          out_.Unsigned(BitsOf(hash, hash.bytes.size() - 8));
          break;
        case HashForm::kBytes:
          out_.Bytes(hash);
          break;
        case HashForm::kFirstBits:
          out_.Signed(static_cast<int64_t>(BitsOf(hash, 0)));
          break;
      }
    }
  }
  void Group(const std::optional<EventGroup>& group) {
    if (!group) return Default("group_idx");
    Field("group_idx").Unsigned(group->index);
  }
  void Kind(const std::optional<EventGroup>& group) {
    if (!group) return Default("kv_cache_spec_kind");
    Field("kv_cache_spec_kind").Text(group->full_attention ? kFullAttention : kUnknown);
  }
  void Place() {
    Field("locality").Text(kLocality);
    Field("ownership").Text(kOwner);
  }

  const EventEncoding encoding_;
  MsgpackWriter& out_;
};

}  // namespace

std::string EncodeBatch(double time, std::span<const KvEvent> events, EventEncoding encoding) {
  MsgpackWriter out;
  out.Array(3);
  out.Real(time);
  out.Array(events.size());
  EventFields fields(encoding, &out);
  for (const KvEvent& event : events) fields.Write(event);
  out.Unsigned(0);  // The rank, as of an engine without data parallelism.
  return out.Take();
}

}  // namespace cairn::cache
