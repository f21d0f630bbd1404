#pragma once
// The facts about a namespace in all of its generations: its spec, and how its parts are stored.
// Made once, when the namespace is opened or found on disk again.
//
//   spec --CheckNamespace--> CheckedNamespace --PartCodecsOf--> PartCodecs --> PartStorage
//     |                           any error of these two
//     +-- not storable: OpenNamespace refuses it. When its blocks are found on disk (an older or a
//         newer version stored them), they are kept, listed, evicted and dropped as others are, but
//         neither read nor written.

#include <memory>

#include "cairn/common/namespace_spec.h"
#include "cairn/common/status.h"
#include "cairn/common/tier_kind.h"
#include "common/keys/checked_namespace.h"
#include "services/cache/store/block/part_grid.h"
#include "services/cache/store/block/recoder.h"

namespace cairn::cache {

// How the parts of a namespace look and how they are encoded again. Immutable; thread-safe. The
// layout must outlive it.
struct PartStorage {
  Recipe recipe;
  FieldHashes fields;                      // The hashes of the spec's fields.
  PartForm pushed;                         // The form of parts that writers bring.
  ByTier<PartForm> in_tier;                // The form of parts that lie in a tier.
  std::unique_ptr<const Recoder> recoder;  // nullptr unless the recipe is a ladder.
};

// Immutable; thread-safe.
struct StoredNamespace {
  static std::shared_ptr<const StoredNamespace> Of(NamespaceSpec spec);

  StoredNamespace(NamespaceSpec spec, Result<CheckedNamespace> checked);
  StoredNamespace(const StoredNamespace&) = delete;
  StoredNamespace& operator=(const StoredNamespace&) = delete;

  const NamespaceSpec spec;
  const Digest fingerprint;
  // INVALID_ARGUMENT or UNIMPLEMENTED, which names the field: the parts cannot be read or written.
  const Result<PartStorage> storage;

  // Its memory, in bytes.
  size_t MemoryBytes() const;
};

}  // namespace cairn::cache
