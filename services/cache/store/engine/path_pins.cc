#include "services/cache/store/engine/path_pins.h"

#include <algorithm>

namespace cairn::cache {
namespace {

constexpr size_t kUnpinAtOnce = 256;  // Under one lock.

}  // namespace

void Unpin(NodeContext& context, NamespaceState& ns, std::span<const PinId> pins) {
  while (!pins.empty()) {
    NamespaceLock lock(ns, context.tiers);
    const auto some = pins.first(std::min(pins.size(), kUnpinAtOnce));
    for (const PinId pin : some) ns.index.Unpin(pin, &lock.released);
    pins = pins.subspan(some.size());
  }
}

PathPins::~PathPins() { Unpin(context_, *ns_, pins_); }

}  // namespace cairn::cache
