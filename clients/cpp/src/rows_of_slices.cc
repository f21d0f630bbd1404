// Rows out of whole slices: CacheClient::FetchRows.
#include "clients/cpp/src/rows_of_slices.h"

#include <algorithm>
#include <vector>

namespace cairn::client {
namespace {

// Takes the rows out of slices, where they lie if it can.
class SliceReader final : public FetchSink {
 public:
  SliceReader(const RowLayout& layout, std::span<const RowGroup> groups, RowSink& sink)
      : layout_(layout), groups_(groups), sink_(sink), done_(groups.size()) {}

  Status OnSlice(const SliceInfo& slice, std::span<const std::byte> data) override {
    return Take(slice, data, nullptr);
  }
  bool WantsLent() const override { return true; }
  Status OnLentSlice(const SliceInfo& slice, std::span<const std::byte> data,
                     std::shared_ptr<const LentHold> hold) override {
    return Take(slice, data, hold.get());
  }
  void OnBlockFailed(uint32_t block, MissReason reason) override {
    const auto [begin, end] = GroupsOf(groups_, block);
    FailRest(begin, end, reason);
  }

  // Groups [begin, end) that have not come will not.
  void FailRest(size_t begin, size_t end, MissReason reason) {
    for (size_t i = begin; i < end; ++i) {
      if (!done_[i]) sink_.OnRowsFailed(i, reason);
      done_[i] = true;
    }
  }

 private:
  Status Take(const SliceInfo& slice, std::span<const std::byte> data, const LentHold* hold) {
    CAIRN_ASSIGN_OR_RETURN(const SliceRows rows,
                           layout_.In(slice.layer, slice.part, slice.codec, slice.slice_bytes));
    const auto [begin, end] = GroupsOf(groups_, slice.block);
    for (size_t i = begin; i < end; ++i) {
      const RowGroup& group = groups_[i];
      if (done_[i] || !rows.has(group.head)) continue;
      buffer_.resize(rows.Bytes(group.head, group.mask));
      rows.Gather(data, group.head, group.mask, buffer_.data());
      if (hold != nullptr && !hold->Pinned()) {
        return Errorf(StatusCode::kUnavailable, "fetch: the session has ended");
      }
      done_[i] = true;
      CAIRN_RETURN_IF_ERROR(sink_.OnRows(i,
                                         {.block = group.block,
                                          .layer = slice.layer,
                                          .head = group.head,
                                          .codec = slice.codec,
                                          .slice_xxh3 = slice.xxh3},
                                         buffer_));
    }
    return OkStatus();
  }

  const RowLayout& layout_;
  const std::span<const RowGroup> groups_;
  RowSink& sink_;
  std::vector<bool> done_;
  std::vector<std::byte> buffer_;
};

}  // namespace

std::pair<size_t, size_t> GroupsOf(std::span<const RowGroup> groups, uint32_t block) {
  const auto [begin, end] =
      std::equal_range(groups.begin(), groups.end(), RowGroup{.block = block},
                       [](const RowGroup& a, const RowGroup& b) { return a.block < b.block; });
  return {static_cast<size_t>(begin - groups.begin()), static_cast<size_t>(end - groups.begin())};
}

Status CacheClient::FetchRows(const Lease& lease, const RowLayout& layout, uint32_t layer,
                              std::span<const RowGroup> groups, RowSink& sink,
                              const FetchOptions& options) {
  if (!lease.held()) {
    return InvalidArgument("field 'lease': got none, expected a lease from Match");
  }
  CAIRN_RETURN_IF_ERROR(layout.Check(layer, groups, lease.info().blocks));
  FetchOptions verified = options;
  verified.verify = true;
  SliceReader reader(layout, groups, sink);
  for (size_t begin = 0; begin < groups.size();) {
    // A run of neighbouring blocks at a time.
    size_t end = begin + 1;
    while (end < groups.size() && groups[end].block <= groups[end - 1].block + 1) ++end;
    CAIRN_RETURN_IF_ERROR(Fetch(lease,
                                {.block_begin = groups[begin].block,
                                 .block_end = groups[end - 1].block + 1,
                                 .layer_begin = layer,
                                 .layer_end = layer + 1},
                                reader, verified));
    reader.FailRest(begin, end, MissReason::kIncomplete);
    begin = end;
  }
  return OkStatus();
}

}  // namespace cairn::client
