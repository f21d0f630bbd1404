#pragma once
// A namespace that a client opens whenever a session begins. A plain struct: as thread-safe as one.

#include <utility>

#include "cairn/client/types.h"
#include "cairn/common/namespace_spec.h"

namespace cairn::client {

struct KnownNamespace {
  NamespaceSpec spec;
  NamespaceOptions how;

  // A constructor, so that maps make one in place.
  explicit KnownNamespace(NamespaceSpec spec_in, const NamespaceOptions& how_in = {})
      : spec(std::move(spec_in)), how(how_in) {}
};

}  // namespace cairn::client
