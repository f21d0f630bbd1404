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

#include <array>
#include <cstdint>
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

// One hash for each field that Differences compares, in its order; the last ones belong to the
// form of the layout. For nodes, which compare a namespace with all others of its tenant.
using FieldHashes = std::array<uint64_t, 15>;
FieldHashes HashFields(const CheckedNamespace& ns);
// Whether Differences would name exactly one field.
bool DifferInOneField(const FieldHashes& a, const FieldHashes& b);

// As Differences of the specs. `stored_recipe` and `requested_recipe` are the values of their
// recipes.
std::vector<FieldDifference> Differences(const NamespaceSpec& stored, const Recipe& stored_recipe,
                                         const NamespaceSpec& requested,
                                         const Recipe& requested_recipe);

}  // namespace cairn
