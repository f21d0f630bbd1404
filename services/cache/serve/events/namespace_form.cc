#include "services/cache/serve/events/namespace_form.h"

#include <algorithm>
#include <array>
#include <utility>

namespace cairn::cache {
namespace {

constexpr size_t kMostTopicBytes = 255;
constexpr std::string_view kVllmKeys = "vllm-", kSglangKeys = "sglang-";
constexpr std::array kPlaceholders = {std::string_view("{node}"), std::string_view("{host}"),
                                      std::string_view("{model}")};

bool IsControl(char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; }

std::string_view MediumOf(EventEngine engine, TierKind tier) {
  const bool vllm = engine == EventEngine::kVllm;
  switch (tier) {
    case TierKind::kDevice:
      return "GPU";
    case TierKind::kHost:
      return vllm ? "CPU" : "CPU_PINNED";
    case TierKind::kDisk:
      break;
  }
  return vllm ? "STORAGE" : "DISK";
}

}  // namespace

Status CheckTopic(const std::string& topic, const std::string& field) {
  const auto bad = [&](std::string_view expected) {
    return InvalidArgument("{}: got '{}', expected {}", field, topic, expected);
  };
  if (topic.size() > kMostTopicBytes) return bad("at most 255 bytes");
  if (std::ranges::any_of(topic, IsControl)) return bad("no control characters");
  for (size_t at = topic.find_first_of("{}"); at != std::string::npos;) {
    const std::string_view rest = std::string_view(topic).substr(at);
    const auto found = std::ranges::find_if(
        kPlaceholders, [&](std::string_view placeholder) { return rest.starts_with(placeholder); });
    if (found == kPlaceholders.end()) return bad("braces around node, host or model alone");
    at = topic.find_first_of("{}", at + found->size());
  }
  return OkStatus();
}

std::string TopicOf(std::string_view topic, const TopicNames& names, std::string_view model) {
  std::string clean(model);
  std::ranges::replace_if(
      clean, [](char c) { return c == '@' || IsControl(c); }, '_');
  std::string out;
  while (!topic.empty()) {
    if (topic.starts_with(kPlaceholders[0])) {
      out += names.node;
    } else if (topic.starts_with(kPlaceholders[1])) {
      out += names.host;
    } else if (topic.starts_with(kPlaceholders[2])) {
      out += clean;
    } else {
      out += topic.front();
      topic.remove_prefix(1);
      continue;
    }
    topic.remove_prefix(topic.find('}') + 1);
  }
  return out;
}

std::optional<NamespaceForm> NamespaceForm::Of(const NamespaceSpec& spec, std::string topic,
                                               bool bytes) {
  // Keys of a native layout are Cairn's, whatever their scheme is called.
  if (spec.layout.IsNative()) return std::nullopt;
  NamespaceForm form;
  if (spec.key_scheme.starts_with(kVllmKeys)) {
    form.hashes_ = bytes ? HashForm::kBytes : HashForm::kLastBits;
  } else if (spec.key_scheme.starts_with(kSglangKeys)) {
    form.engine_ = EventEngine::kSglang;
    form.hashes_ = HashForm::kFirstBits;
  } else {
    return std::nullopt;
  }
  form.topic_ = std::make_shared<const std::string>(std::move(topic));
  const auto pools = spec.layout.Pools();
  for (uint32_t pool = 0; pool < spec.layout.PoolCount(); ++pool) {
    PoolForm& made = form.pools_.emplace_back();
    made.block_tokens = spec.layout.BlockTokensOf(pool);
    if (!pools.empty()) {
      made.group = EventGroup{.index = pool, .full_attention = pools[pool].chained};
    }
  }
  return form;
}

std::optional<EventShape> NamespaceForm::ShapeOf(EventShape::Kind kind, TierKind tier,
                                                 uint32_t pool) const {
  if (pool >= pools_.size()) return std::nullopt;
  const bool vllm = engine_ == EventEngine::kVllm;
  // SGLang's own events are about its first pool.
  if (!vllm && pool > 0) return std::nullopt;
  return EventShape{.kind = kind,
                    .engine = engine_,
                    .hashes = hashes_,
                    .medium = MediumOf(engine_, tier),
                    .block_tokens = pools_[pool].block_tokens,
                    .group = vllm ? pools_[pool].group : std::nullopt};
}

}  // namespace cairn::cache
