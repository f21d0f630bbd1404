#pragma once
// The one way to write a namespace that several specs mean. For the files of this folder only.

#include <string>
#include <string_view>
#include <vector>

#include "cairn/common/namespace_spec.h"

namespace cairn {

// Neighbouring groups with equal planes are one group.
std::vector<LayerGroup> CanonicalGroups(const std::vector<LayerGroup>& groups);
// "int8" and "int8:group=64,sink=0" are one recipe. A text that is no recipe of this version stays
// as it is: a newer version stored it in its canonical form.
std::string CanonicalRecipeOf(const NamespaceSpec& spec);

// As Encode(spec). `recipe`: CanonicalRecipeOf(spec).
std::string Encode(const NamespaceSpec& spec, std::string_view recipe);

}  // namespace cairn
