#pragma once
// Pins that end with their last holder. Not thread-safe while pins are added; the last holder may
// be on any thread.

#include <span>
#include <utility>

#include "services/cache/store/state/node_context.h"

namespace cairn::cache {

// Ends pins in portions, so that others get the lock of the namespace between them.
void Unpin(NodeContext& context, NamespaceState& ns, std::span<const PinId> pins);

// Slices that a fetch handed out stay readable when its block leaves the tier, or its lease ends.
class PathPins {
 public:
  PathPins(NodeContext* context, NamespacePtr ns)
      : token_(&context->in_flight), context_(*context), ns_(std::move(ns)) {}
  // Takes the lock of the namespace.
  ~PathPins();
  PathPins(const PathPins&) = delete;
  PathPins& operator=(const PathPins&) = delete;
  void Add(PinId pin) { pins_.push_back(pin); }

 private:
  // The network may hold slices for a moment longer than the call: the engine waits for them.
  InFlight::Token token_;
  NodeContext& context_;
  const NamespacePtr ns_;
  absl::InlinedVector<PinId, 1> pins_;
};

}  // namespace cairn::cache
