#pragma once
// A namespace whose fields were checked and whose recipe was parsed. Code that gets a spec from
// outside makes one of these and hands it on, so that nobody else parses the recipe.
//
//   NamespaceSpec      what users write and what calls carry; the recipe is text
//        |
//        |  CheckNamespace: the fields, and the grammar of the recipe
//        v
//   CheckedNamespace   with the recipe as a value, and the fingerprint
//        |
//        |  PartCodecsOf (part_codec.h): whether the recipe can store the layout
//        v
//   PartCodecs         ready codecs, from which a node makes its StoredNamespace and a worker its
//                      KvCodec

#include <vector>

#include "cairn/common/namespace_spec.h"
#include "common/recipe/recipe.h"

namespace cairn {

// Made by CheckNamespace only. As thread-safe as a plain struct.
struct CheckedNamespace {
  NamespaceSpec spec;
  Recipe recipe;       // The value of spec.recipe.
  Digest fingerprint;  // Fingerprint(spec).
};

// Errors as Validate.
Result<CheckedNamespace> CheckNamespace(const NamespaceSpec& spec);

// As Differences of the specs. `stored_recipe` and `requested_recipe` are the values of their
// recipes.
std::vector<FieldDifference> Differences(const NamespaceSpec& stored, const Recipe& stored_recipe,
                                         const NamespaceSpec& requested,
                                         const Recipe& requested_recipe);

}  // namespace cairn
