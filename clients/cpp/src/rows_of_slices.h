#pragma once
// Tools of the fetches of rows.

#include <cstddef>
#include <span>

#include "cairn/client/cache_client.h"

namespace cairn::client {

// Gives some groups of a call to its sink, under the numbers that they have there. Used by one
// thread.
class NumberedRowSink final : public RowSink {
 public:
  // `numbers[i]`: of group i. Both outlive it.
  NumberedRowSink(RowSink& sink, std::span<const size_t> numbers)
      : sink_(sink), numbers_(numbers) {}
  Status OnRows(size_t group, const RowsInfo& info, std::span<const std::byte> rows) override {
    return sink_.OnRows(numbers_[group], info, rows);
  }
  void OnRowsFailed(size_t group, MissReason reason) override {
    sink_.OnRowsFailed(numbers_[group], reason);
  }

 private:
  RowSink& sink_;
  const std::span<const size_t> numbers_;
};

// The groups of `block`, as [first, second). REQUIRES: ascending order.
std::pair<size_t, size_t> GroupsOf(std::span<const RowGroup> groups, uint32_t block);

}  // namespace cairn::client
