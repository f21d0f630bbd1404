#include "clients/python/src/arguments.h"

#include <nanobind/stl/string.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "clients/python/src/memory.h"
#include "clients/python/src/status_error.h"

namespace nb = nanobind;

namespace cairn::python {
namespace {

[[noreturn]] void WrongType(nb::handle object, const char* expected, const Field& field) {
  throw nb::type_error(
      fmt::format("field '{}': got {}, expected {}", field, TypeName(object), expected).c_str());
}

uint32_t U32(nb::handle object, const char* name, const std::string& prefix) {
  return static_cast<uint32_t>(
      Integer(object.attr(name), std::numeric_limits<uint32_t>::max(), prefix + name));
}

nb::object Sequence(nb::handle object, const char* expected, const Field& field) {
  if (!PySequence_Check(object.ptr()) || PyUnicode_Check(object.ptr())) {
    WrongType(object, expected, field);
  }
  nb::object items = nb::steal(PySequence_Fast(object.ptr(), expected));
  if (!items.is_valid()) throw nb::python_error();
  return items;
}

Plane ToPlane(nb::handle object, const std::string& field) {
  if (!nb::hasattr(object, "dtype")) WrongType(object, "a Plane", field);
  return {.name = Text(object.attr("name"), field + ".name"),
          .heads = U32(object, "heads", field + "."),
          .dim = U32(object, "dim", field + "."),
          .dtype = static_cast<DType>(Integer(object.attr("dtype"), 255, field + ".dtype"))};
}

NativeLayout ToNative(nb::handle object) {
  NativeLayout native;
  native.kv_heads = U32(object, "kv_heads", "layout.native.");
  native.key_rotation = static_cast<KeyRotation>(
      Integer(object.attr("key_rotation"), 255, "layout.native.key_rotation"));
  const std::string groups = "layout.native.groups";
  for (nb::handle item : Sequence(object.attr("groups"), "a sequence of LayerGroup", groups)) {
    const std::string field = fmt::format("{}[{}]", groups, native.groups.size());
    if (!nb::hasattr(item, "planes")) WrongType(item, "a LayerGroup", field);
    LayerGroup& group = native.groups.emplace_back();
    group.count = U32(item, "count", field + ".");
    for (nb::handle plane :
         Sequence(item.attr("planes"), "a sequence of Plane", field + ".planes")) {
      group.planes.push_back(
          ToPlane(plane, fmt::format("{}.planes[{}]", field, group.planes.size())));
    }
  }
  return native;
}

uint64_t MaxPartBytes(nb::handle object, const std::string& prefix) {
  return Integer(object.attr("max_part_bytes"), std::numeric_limits<uint64_t>::max(),
                 prefix + "max_part_bytes");
}

std::vector<Pool> ToPools(nb::handle object) {
  const nb::object items = Sequence(object, "a sequence of Pools", "layout.opaque.pools");
  const size_t count = nb::len(items);
  if (count == 0) {
    throw StatusError(
        InvalidArgument("field 'layout.opaque.pools': got none, expected 1 to {}", kMaxPools));
  }
  ThrowIfError(CheckPoolCount(count));
  std::vector<Pool> pools;
  for (nb::handle item : items) {
    const std::string prefix = fmt::format("layout.opaque.pools[{}].", pools.size());
    if (!nb::hasattr(item, "chained")) {
      WrongType(item, "a Pool", fmt::format("layout.opaque.pools[{}]", pools.size()));
    }
    pools.push_back({.name = Text(item.attr("name"), prefix + "name"),
                     .block_tokens = U32(item, "block_tokens", prefix),
                     .parts = U32(item, "parts", prefix),
                     .max_part_bytes = MaxPartBytes(item, prefix),
                     .chained = Flag(item.attr("chained"), prefix + "chained")});
  }
  return pools;
}

int32_t Token(int64_t value, size_t at) {
  if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max()) {
    throw StatusError(InvalidArgument("field 'tokens[{}]': got {}, expected an i32", at, value));
  }
  return static_cast<int32_t>(value);
}

std::vector<int32_t> TokensOfBuffer(nb::handle object) {
  Py_buffer view;
  if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_CONTIG_RO | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    throw StatusError(
        InvalidArgument("field 'tokens': got a {} that is not contiguous, expected "
                        "contiguous i32 or i64",
                        TypeName(object)));
  }
  const std::string format = view.format == nullptr ? "B" : view.format;
  const size_t count = static_cast<size_t>(view.len) / static_cast<size_t>(view.itemsize);
  const bool wide = view.itemsize == 8 && (format == "l" || format == "q");
  std::vector<int32_t> tokens;
  if (view.itemsize == 4 && (format == "i" || format == "l")) {
    tokens.resize(count);
    std::memcpy(tokens.data(), view.buf, count * sizeof(int32_t));
  } else if (wide) {
    tokens.reserve(count);
    for (size_t i = 0; i < count; ++i) {
      int64_t value;
      std::memcpy(&value, static_cast<const char*>(view.buf) + i * sizeof(value), sizeof(value));
      if (value != static_cast<int32_t>(value)) {
        PyBuffer_Release(&view);
        Token(value, i);
      }
      tokens.push_back(static_cast<int32_t>(value));
    }
  } else {
    PyBuffer_Release(&view);
    throw StatusError(
        InvalidArgument("field 'tokens': got items of format '{}', expected i32 or i64", format));
  }
  PyBuffer_Release(&view);
  return tokens;
}

}  // namespace

std::string TypeName(nb::handle object) { return Py_TYPE(object.ptr())->tp_name; }

uint64_t Integer(nb::handle object, uint64_t max, const Field& field) {
  if (!PyIndex_Check(object.ptr())) WrongType(object, "an integer", field);
  nb::object number = nb::steal(PyNumber_Index(object.ptr()));
  const unsigned long long value = PyLong_AsUnsignedLongLong(number.ptr());
  const bool outside = PyErr_Occurred() != nullptr;
  PyErr_Clear();
  if (outside || value > max) {
    throw StatusError(InvalidArgument("field '{}': got {}, expected 0 to {}", field,
                                      nb::cast<std::string>(nb::str(number)), max));
  }
  return value;
}

double Number(nb::handle object, const Field& field) {
  const double value = PyFloat_AsDouble(object.ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    WrongType(object, "a number", field);
  }
  if (!std::isfinite(value) || value < 0) {
    throw StatusError(
        InvalidArgument("field '{}': got {}, expected a number of at least 0", field, value));
  }
  return value;
}

bool Flag(nb::handle object, const Field& field) {
  if (!PyBool_Check(object.ptr())) WrongType(object, "bool", field);
  return object.ptr() == Py_True;
}

std::string Text(nb::handle object, const Field& field) {
  if (!PyUnicode_Check(object.ptr())) WrongType(object, "str", field);
  return nb::cast<std::string>(object);
}

std::vector<std::string> Texts(nb::handle object, const Field& field) {
  // A text is a sequence of texts, too, which nobody means.
  if (PyUnicode_Check(object.ptr())) WrongType(object, "a sequence of str", field);
  const nb::object items = Sequence(object, "a sequence of str", field);
  std::vector<std::string> texts;
  for (nb::handle item : items) texts.push_back(Text(item, field));
  return texts;
}

std::string Bytes(nb::handle object, const Field& field) {
  if (!PyBytes_Check(object.ptr())) WrongType(object, "bytes", field);
  return {PyBytes_AS_STRING(object.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(object.ptr()))};
}

Duration Seconds(nb::handle object, const Field& field) {
  const double value = Number(object, field);
  if (value > 1e9) {
    throw StatusError(InvalidArgument("field '{}': got {} s, expected at most 1e9", field, value));
  }
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(value));
}

Digest ToDigest(nb::handle object, const Field& field) {
  if (!PyBytes_Check(object.ptr())) WrongType(object, "bytes", field);
  const std::string_view bytes(PyBytes_AS_STRING(object.ptr()),
                               static_cast<size_t>(PyBytes_GET_SIZE(object.ptr())));
  if (bytes.size() != sizeof(Digest::bytes)) {
    return ValueOrThrow(Digest::FromBytes(bytes, field.str()));  // Throws.
  }
  Digest digest;
  std::memcpy(digest.bytes.data(), bytes.data(), bytes.size());
  return digest;
}

std::optional<Digest> ToOptionalDigest(nb::handle object, const Field& field) {
  if (object.is_none()) return std::nullopt;
  return ToDigest(object, field);
}

std::vector<BlockKey> Keys(nb::handle object) {
  const nb::object items = Sequence(object, "a sequence of bytes", "keys");
  const auto count = static_cast<size_t>(PySequence_Fast_GET_SIZE(items.ptr()));
  PyObject** const item = PySequence_Fast_ITEMS(items.ptr());
  std::vector<BlockKey> keys(count);
  for (size_t i = 0; i < count; ++i) keys[i] = ToDigest(item[i], {"keys", i});
  return keys;
}

std::vector<int32_t> Tokens(nb::handle object) {
  if (PyObject_CheckBuffer(object.ptr())) return TokensOfBuffer(object);
  const nb::object items = Sequence(object, "a sequence of integers", "tokens");
  std::vector<int32_t> tokens;
  tokens.reserve(nb::len(items));
  for (nb::handle item : items) {
    const size_t at = tokens.size();
    if (!PyIndex_Check(item.ptr())) WrongType(item, "an integer", fmt::format("tokens[{}]", at));
    const nb::object number = nb::steal(PyNumber_Index(item.ptr()));
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
    tokens.push_back(Token(overflow == 0 ? value : std::numeric_limits<int64_t>::max(), at));
  }
  return tokens;
}

Layout ToLayout(nb::handle object) {
  Layout layout;
  if (nb::hasattr(object, "groups")) {
    layout.form = ToNative(object);
  } else if (nb::hasattr(object, "pools")) {
    layout.form =
        OpaqueLayout{.description = Text(object.attr("description"), "layout.opaque.description"),
                     .pools = ToPools(object.attr("pools"))};
  } else if (nb::hasattr(object, "max_part_bytes")) {
    layout.form =
        OpaqueLayout{.description = Text(object.attr("description"), "layout.opaque.description"),
                     .max_part_bytes = MaxPartBytes(object, "layout.opaque."),
                     .parts = U32(object, "parts", "layout.opaque.")};
  } else {
    WrongType(object, "a NativeLayout, an OpaqueLayout or a PooledLayout", "layout");
  }
  layout.block_tokens = U32(object, "block_tokens", "layout.");
  return layout;
}

NamespaceSpec ToSpec(nb::handle object) {
  if (!nb::hasattr(object, "numerics")) WrongType(object, "a NamespaceSpec", "spec");
  NamespaceSpec spec;
  spec.tenant = Text(object.attr("tenant"), "tenant");
  spec.salt = Bytes(object.attr("salt"), "salt");
  spec.model = Text(object.attr("model"), "model");
  spec.revision = Text(object.attr("revision"), "revision");
  spec.weight_epoch =
      Integer(object.attr("weight_epoch"), std::numeric_limits<uint64_t>::max(), "weight_epoch");
  spec.layout = ToLayout(object.attr("layout"));
  spec.recipe = Text(object.attr("recipe"), "recipe");
  spec.numerics = Text(object.attr("numerics"), "numerics");
  spec.key_version = U32(object, "key_version", "");
  spec.key_scheme = Text(object.attr("key_scheme"), "key_scheme");
  ThrowIfError(Validate(spec));
  return spec;
}

format::PartRect ToRect(nb::handle object, const Layout& layout, const Field& field) {
  const format::PartRect grid = layout.WholeRect();
  if (object.is_none() && layout.PoolCount() == 1) return grid;
  const auto side = [&](const char* name) {
    return static_cast<uint16_t>(Integer(object.attr(name), 65535, field.str() + "." + name));
  };
  if (!nb::hasattr(object, "head_end")) {
    WrongType(object, layout.PoolCount() == 1 ? "a Rect" : "the Rect of a pool", field);
  }
  const format::PartRect rect = {side("layer_begin"), side("layer_end"), side("head_begin"),
                                 side("head_end")};
  if (rect.layer_begin >= rect.layer_end || rect.head_begin >= rect.head_end ||
      rect.layer_end > grid.layer_end || rect.head_end > grid.head_end) {
    throw StatusError(
        InvalidArgument("field '{}': got layers [{}, {}), heads [{}, {}), expected a rectangle in "
                        "[0, {}) x [0, {})",
                        field, rect.layer_begin, rect.layer_end, rect.head_begin, rect.head_end,
                        grid.layer_end, grid.head_end));
  }
  if (const format::PartRect pool = layout.WholeOf(layout.PoolOf(rect));
      rect.layer_end > pool.layer_end || rect.head_end > pool.head_end) {
    throw StatusError(InvalidArgument(
        "field '{}': got layers [{}, {}), heads [{}, {}), expected parts of one pool: '{}' has "
        "layer {} and {} heads",
        field, rect.layer_begin, rect.layer_end, rect.head_begin, rect.head_end,
        layout.Pools()[pool.layer_begin].name, pool.layer_begin, pool.head_end));
  }
  return rect;
}

nb::bytes FromDigest(const Digest& digest) {
  return nb::bytes(reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size());
}

}  // namespace cairn::python
