#include "clients/python/src/reading.h"

#include <nanobind/stl/string.h>

#include "clients/python/src/arguments.h"
#include "clients/python/src/status_error.h"

namespace nb = nanobind;

namespace cairn::python {

size_t CountOf(nb::handle into) {
  if (!PyList_Check(into.ptr()) && !PyTuple_Check(into.ptr())) {
    throw nb::type_error(
        fmt::format("field 'into': got {}, expected a list or tuple with the memory of each block",
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
  blocks.reserve(nb::len(into));
  memory_.reserve(nb::len(into));
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
  if (layout_.IsNative()) {
    range.layer_begin = want_.layer_begin;
    range.layer_end = want_.layer_end;
  }
  return range;
}

nb::object Reading::Answer(const Status& status) const {
  nb::dict failed;
  const auto open = status.ok() ? client::MissReason::kIncomplete : client::MissReason::kUnavailable;
  for (const auto& [block, reason] : sink_.Failed(open)) {
    failed[nb::int_(block)] = static_cast<int>(reason);
  }
  return nb::make_tuple(static_cast<int>(status.code()), Message(status), sink_.prefix(),
                        sink_.bytes(), failed);
}

}  // namespace cairn::python
