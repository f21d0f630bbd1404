#pragma once
// Makes plain C++ values from Python's values. Errors name the field: TypeError for a wrong type,
// INVALID_ARGUMENT for a wrong value. The caller must hold the GIL.

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cairn/client/types.h"
#include "cairn/common/clock.h"
#include "cairn/common/namespace_spec.h"
#include "cairn/common/part.h"
#include "clients/python/src/field.h"

namespace cairn::python {

std::string TypeName(nanobind::handle object);

// An attribute of `object` that is an integer in [0, max].
uint64_t Integer(nanobind::handle object, uint64_t max, const Field& field);
double Number(nanobind::handle object, const Field& field);
bool Flag(nanobind::handle object, const Field& field);
std::string Text(nanobind::handle object, const Field& field);
// A sequence of texts.
std::vector<std::string> Texts(nanobind::handle object, const Field& field);
// bytes of any length.
std::string Bytes(nanobind::handle object, const Field& field);
// Seconds, 0 to 1e9.
Duration Seconds(nanobind::handle object, const Field& field);
Digest ToDigest(nanobind::handle object, const Field& field);
std::optional<Digest> ToOptionalDigest(nanobind::handle object, const Field& field);
std::vector<BlockKey> Keys(nanobind::handle object);
// Integers, or a buffer of i32 or i64.
std::vector<int32_t> Tokens(nanobind::handle object);
// NativeLayout, OpaqueLayout or PooledLayout. Not validated.
Layout ToLayout(nanobind::handle object);
// Validated.
NamespaceSpec ToSpec(nanobind::handle object);
// None: the whole grid. Inside the grid of `layout`.
format::PartRect ToRect(nanobind::handle object, const Layout& layout, const Field& field);

nanobind::bytes FromDigest(const Digest& digest);

}  // namespace cairn::python
