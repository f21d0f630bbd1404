#include "clients/python/src/reading.h"

#include <nanobind/stl/string.h>

#include "clients/python/src/arguments.h"
#include "clients/python/src/status_error.h"

namespace nb = nanobind;

namespace cairn::python {

namespace {
bool IsListOrTuple(nb::handle object) {
  return PyList_Check(object.ptr()) || PyTuple_Check(object.ptr());
}
}  // namespace

size_t CountOf(nb::handle into) {
  const bool array = PyObject_CheckBuffer(into.ptr()) || nb::hasattr(into, "__dlpack__");
  if (!IsListOrTuple(into) && !(array && PyObject_Size(into.ptr()) >= 0)) {
    PyErr_Clear();
    throw nb::type_error(
        fmt::format("field 'into': got {}, expected a list or tuple with the memory "
                    "of each block, or an array with a row for each",
                    TypeName(into))
            .c_str());
  }
  return nb::len(into);
}

Reading::Reading(Connection& connection, const Layout& layout, nb::handle into,
                 uint32_t first_block, nb::handle rect, const std::stop_source* cancel)
    : layout_(layout),
      first_(first_block),
      want_(ToRect(rect, layout, "rect")),
      sink_(ValueOrThrow(BlockSink::Create(layout, want_, first_block, Take(into)))),
      on_close_(connection.stop_token(), Stop{&stop_}),
      on_cancel_(cancel == nullptr ? std::stop_token() : cancel->get_token(), Stop{&stop_}) {}

std::vector<BlockSink::Block> Reading::Take(nb::handle into) {
  std::vector<BlockSink::Block> blocks;
  const size_t count = CountOf(into);
  if (count == 0) return blocks;  // It had some when its caller looked.
  blocks.reserve(count);
  if (!IsListOrTuple(into)) {
    // Asked for once: numpy takes a microsecond to say where the memory of an array is.
    memory_.push_back(Pieces(into, Access::kWrite, "into"));
    const std::span<std::byte> all = memory_.front().front().bytes();
    if (all.size() % count != 0) {
      throw StatusError(
          InvalidArgument("field 'into': got {} bytes for {} blocks, expected as many for each",
                          all.size(), count));
    }
    const size_t row = all.size() / count;
    for (size_t i = 0; i < count; ++i) {
      blocks.emplace_back(BlockSink::Block::Pieces{all.subspan(i * row, row)});
    }
    return blocks;
  }
  memory_.reserve(count);
  for (nb::handle block : into) {
    memory_.push_back(Pieces(block, Access::kWrite, {"into", memory_.size()}));
    blocks.push_back(BytesOf<std::byte>(memory_.back()));
  }
  return blocks;
}

client::FetchOptions Reading::Options(nb::handle progress, nb::handle deadline,
                                      const std::string& trace) const {
  return {.progress = Seconds(progress, "progress"),
          .deadline = Seconds(deadline, "deadline"),
          .cancel = stop_.get_token(),
          .trace = trace};
}

client::FetchRange Reading::Range(size_t blocks) const {
  client::FetchRange range = {.block_begin = first_,
                              .block_end = first_ + static_cast<uint32_t>(blocks)};
  // Blocks of other pools in the range send nothing.
  if (layout_.IsNative() || layout_.PoolCount() > 1) {
    range.layer_begin = want_.layer_begin;
    range.layer_end = want_.layer_end;
  }
  return range;
}

nb::object Reading::Answer(const Status& status) const {
  nb::dict failed;
  const auto open =
      status.ok() ? client::MissReason::kIncomplete : client::MissReason::kUnavailable;
  for (const auto& [block, reason] : sink_.Failed(open)) {
    failed[nb::int_(block)] = static_cast<int>(reason);
  }
  return nb::make_tuple(static_cast<int>(status.code()), Message(status), sink_.prefix(),
                        sink_.bytes(), failed);
}

}  // namespace cairn::python
