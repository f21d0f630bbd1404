#include "clients/python/src/part_source.h"

#include "cairn/common/part.h"
#include "clients/python/src/arguments.h"
#include "clients/python/src/status_error.h"

namespace nb = nanobind;

namespace cairn::python {
namespace {

// Fields of a Part by their places: it is a named tuple (cairn/types.py). Looking up six names for
// each part would take longer than all else that a push does with the GIL.
enum PartField : Py_ssize_t {
  kKey,
  kData,
  kParent,
  kFirstPosition,
  kRect,
  kComputeSeconds,
  kPartFields
};

// The size is the object's own, and not that of its type.
bool HasPartFields(nb::handle object) {
  return PyTuple_Check(object.ptr()) && PyTuple_GET_SIZE(object.ptr()) == kPartFields;
}

}  // namespace

PushedParts ReadParts(nb::handle parts, const Layout& layout) {
  PushedParts pushed;
  if (const Py_ssize_t count = PyObject_LengthHint(parts.ptr(), 0); count > 0) {
    pushed.rooms.reserve(static_cast<size_t>(count));
    pushed.contents.reserve(static_cast<size_t>(count));
    pushed.memory.reserve(static_cast<size_t>(count));
  } else {
    PyErr_Clear();
  }
  nb::object part_type;  // The type of the part before, which need not be looked up again.
  for (nb::handle part : parts) {
    const size_t at = pushed.rooms.size();
    const bool known = part.type().is(part_type);
    if (!HasPartFields(part) || !(known || nb::hasattr(part, "compute_seconds"))) {
      throw nb::type_error(
          fmt::format("field 'parts[{}]': got {}, expected a Part", at, TypeName(part)).c_str());
    }
    if (!known) part_type = nb::borrow(part.type());
    const auto value = [&](PartField field) {
      return nb::handle(PyTuple_GET_ITEM(part.ptr(), field));
    };
    const auto name = [&](std::string_view field) { return Field("parts", at, field); };
    PartContent& content = pushed.contents.emplace_back();
    content.bytes = BytesOf<const std::byte>(
        pushed.memory.emplace_back(Pieces(value(kData), Access::kRead, name("data"))));
    const format::PartRect rect = value(kRect).is_none() && layout.PoolCount() == 1
                                      ? layout.WholeRect()
                                      : ToRect(value(kRect), layout, name("rect"));
    content.lengths = ValueOrThrow(SliceLengths(layout, rect, content.bytes.size(), name("data")));
    client::PartToWrite& room = pushed.rooms.emplace_back();
    room.key = ToDigest(value(kKey), name("key"));
    if (!value(kParent).is_none()) room.parent = ToDigest(value(kParent), name("parent"));
    room.first_position = Integer(value(kFirstPosition), UINT64_MAX, name("first_position"));
    room.rect = rect;
    room.bytes = format::PartBytes(content.lengths);
    room.compute_seconds = Number(value(kComputeSeconds), name("compute_seconds"));
  }
  if (pushed.rooms.empty()) {
    throw StatusError(InvalidArgument("field 'parts': got none, expected at least 1"));
  }
  return pushed;
}

}  // namespace cairn::python
