#include "services/cache/engine/path_pins.h"

namespace cairn::cache {

PathPins::~PathPins() {
  NamespaceLock lock(*ns_, context_.tiers);
  for (const PinId pin : pins_) ns_->index.Unpin(pin, &lock.released);
}

}  // namespace cairn::cache
