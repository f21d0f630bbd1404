#include "tests/support/engine_batches.h"

#include <map>
#include <msgpack.hpp>

namespace cairn::router {

class BatchWriter::Events {
 public:
  Events(EventForm events, HashForm hashes) : events_form_(events), hash_form_(hashes) {}

  void Stored(const WrittenStored& event) {
    Begin("BlockStored", 12);
    Name("block_hashes");
    Hashes(event.hashes);
    Name("parent_block_hash");
    if (event.parent) {
      Hash(*event.parent);
    } else {
      packer_.pack_nil();
    }
    Name("token_ids");
    packer_.pack(event.tokens);
    Name("block_size");
    packer_.pack(event.block_size);
    Name("lora_id");
    Maybe(event.lora_id);
    Name("medium");
    Maybe(event.medium);
    Name("lora_name");
    Maybe(event.lora_name);
    Name("extra_keys");
    ExtraKeys(event);
    Name("group_idx");
    Maybe(event.group);
    Name("kv_cache_spec_kind");
    Maybe(event.spec_kind);
    Name("kv_cache_spec_sliding_window");
    Maybe(event.window);
    Name("locality");
    Maybe(event.locality);
  }
  void Removed(const WrittenRemoved& event) {
    Begin("BlockRemoved", 4);
    Name("block_hashes");
    Hashes(event.hashes);
    Name("medium");
    Maybe(event.medium);
    Name("group_idx");
    Maybe(event.group);
    Name("locality");
    Maybe(event.locality);
  }
  void Cleared() { Begin("AllBlocksCleared", 0); }
  void Unknown() {
    Begin("BlockPainted", 1);
    Name("colour");
    packer_.pack(std::map<std::string, int>{{"red", 1}});
  }
  std::string Take() {
    msgpack::sbuffer head;
    msgpack::packer<msgpack::sbuffer> packer(head);
    packer.pack_array(3);
    packer.pack(1234.5);
    packer.pack_array(count_);
    std::string message(head.data(), head.size());
    message.append(buffer_.data(), buffer_.size());
    message += '\0';  // The rank.
    buffer_.clear();
    count_ = 0;
    return message;
  }

 private:
  void Begin(const char* type, uint32_t fields) {
    ++count_;
    if (events_form_ == EventForm::kMaps) {
      packer_.pack_map(1 + fields);
      packer_.pack("type");
    } else {
      packer_.pack_array(1 + fields);
    }
    packer_.pack(type);
  }
  void Name(const char* name) {
    if (events_form_ == EventForm::kMaps) packer_.pack(name);
  }
  template <typename T>
  void Maybe(const std::optional<T>& value) {
    if (value) {
      packer_.pack(*value);
    } else {
      packer_.pack_nil();
    }
  }
  void Hash(uint64_t hash) {
    if (hash_form_ == HashForm::kUnsigned) {
      packer_.pack(hash);
    } else if (hash_form_ == HashForm::kSigned) {
      packer_.pack(static_cast<int64_t>(hash));
    } else {
      // A SHA-256: only its end differs here.
      std::string bytes(32, 'h');
      for (size_t i = 0; i < 8; ++i) bytes[24 + i] = static_cast<char>(hash >> (56 - 8 * i));
      packer_.pack_bin(32);
      packer_.pack_bin_body(bytes.data(), 32);
    }
  }
  void Hashes(const std::vector<uint64_t>& hashes) {
    packer_.pack_array(static_cast<uint32_t>(hashes.size()));
    for (const uint64_t hash : hashes) Hash(hash);
  }
  void ExtraKeys(const WrittenStored& event) {
    if (!event.extra_keys) {
      packer_.pack_nil();
      return;
    }
    packer_.pack_array(static_cast<uint32_t>(event.extra_keys->size()));
    for (const auto& keys : *event.extra_keys) {
      if (keys.empty()) {
        packer_.pack_nil();
      } else {
        packer_.pack(keys);
      }
    }
  }

  const EventForm events_form_;
  const HashForm hash_form_;
  msgpack::sbuffer buffer_;
  msgpack::packer<msgpack::sbuffer> packer_{buffer_};
  uint32_t count_ = 0;
};

BatchWriter::BatchWriter(EventForm events, HashForm hashes)
    : events_(std::make_unique<Events>(events, hashes)) {}
BatchWriter::~BatchWriter() = default;

BatchWriter& BatchWriter::Stored(const WrittenStored& event) {
  events_->Stored(event);
  return *this;
}
BatchWriter& BatchWriter::Removed(const WrittenRemoved& event) {
  events_->Removed(event);
  return *this;
}
BatchWriter& BatchWriter::Cleared() {
  events_->Cleared();
  return *this;
}
BatchWriter& BatchWriter::Unknown() {
  events_->Unknown();
  return *this;
}
std::string BatchWriter::Take() { return events_->Take(); }

std::string SGLangStored(std::initializer_list<const char*> values) {
  msgpack::sbuffer buffer;
  msgpack::packer packer(buffer);
  packer.pack_array(2);
  packer.pack(1.0);
  packer.pack_array(1);
  packer.pack_array(static_cast<uint32_t>(7 + values.size()));
  packer.pack("BlockStored");
  packer.pack(std::vector<int64_t>{-5});
  packer.pack_nil();
  packer.pack(std::vector<int>{1, 2});
  packer.pack(2);
  packer.pack_nil();
  packer.pack("CPU_PINNED");
  for (const char* value : values) {
    if (value == nullptr) {
      packer.pack_nil();
    } else {
      packer.pack(value);
    }
  }
  return {buffer.data(), buffer.size()};
}

}  // namespace cairn::router
