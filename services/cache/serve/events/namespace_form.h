#pragma once
// Which namespaces' blocks are published, and how routers read of them.
//
// Routers know blocks by the engine's own hashes. So a namespace is published if its keys are such:
//
//   key scheme    engine    a block's hash in events, its places
//   vllm-...      vLLM      the last 64 bits of its key, or all of it; GPU, CPU, STORAGE
//   sglang-...    SGLang    the first 64 bits, signed; GPU, CPU_PINNED, DISK. Pool 0 alone
//
// Keys of Cairn's own workers and of LMCache's chunks are nobody else's.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/status.h"
#include "cairn/common/tier_kind.h"
#include "services/cache/serve/events/kv_event.h"

namespace cairn::cache {

// The words that stand for those in braces of a topic: "kv@{node}@{model}".
struct TopicNames {
  std::string node = {};
  std::string host = {};
};

// INVALID_ARGUMENT, which names `field`: a brace that begins none of {node}, {host} and {model}, a
// control character, or more than 255 bytes.
Status CheckTopic(const std::string& topic, const std::string& field);
// The topic of a model's events. Its name comes from a client: a '@' or a control character in it
// becomes '_', so that it cannot be taken for another part of the topic.
std::string TopicOf(std::string_view topic, const TopicNames& names, std::string_view model);

// How the events of one namespace look. Constant after its making: thread-safe.
class NamespaceForm {
 public:
  // nullopt: the namespace is not published. `bytes`: vLLM's hashes are written as all their bytes.
  static std::optional<NamespaceForm> Of(const NamespaceSpec& spec, std::string topic, bool bytes);

  const std::shared_ptr<const std::string>& topic() const { return topic_; }
  // nullopt: blocks of this pool are in no event.
  std::optional<EventShape> ShapeOf(EventShape::Kind kind, TierKind tier, uint32_t pool) const;

 private:
  struct PoolForm {
    uint32_t block_tokens = 0;
    std::optional<EventGroup> group = {};
  };
  NamespaceForm() = default;

  EventEngine engine_ = EventEngine::kVllm;
  HashForm hashes_ = HashForm::kLastBits;
  std::shared_ptr<const std::string> topic_;
  std::vector<PoolForm> pools_;
};

}  // namespace cairn::cache
