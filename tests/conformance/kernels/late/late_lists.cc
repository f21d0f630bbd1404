#include "tests/conformance/kernels/late/late_lists.h"

#include <vector>

#include "cairn/kernels/backend.h"
#include "tests/conformance/kernels/late/late_stream.h"
#include "tests/conformance/kernels/late/reach_arguments.h"

namespace cairn::kernels::testing {
namespace {

const Backend& Reference() { return *FindBackend("reference"); }

void Push(Stream& stream, const char* name, std::function<void(Access&)> work) {
  dynamic_cast<LateStream&>(stream).Push(name, std::move(work));
}

template <typename T>
std::vector<T> Copied(const T* list, int64_t n) {
  return {list, list + n};
}
template <typename T>
bool ReachList(Access& access, std::vector<T>* list) {
  for (T& element : *list) Reach(access, &element);
  return access.ok();
}

template <auto kEntry>
struct LateUnits;
template <typename Args, UnitsOp<Args> SelectionUnitKernels::*kEntry>
struct LateUnits<kEntry> {
  static void Launch(Stream& stream, const UnitsArgs<Args>& a) {
    Push(stream, "units", [units = Copied(a.units, a.count)](Access& access) mutable {
      if (!ReachList(access, &units)) return;
      InlineStream now;
      (Reference().selection_units->*kEntry)(now, {units.data(), std::ssize(units)});
    });
  }
};
template <auto kEntry>
void Add(SelectionUnitKernels* table) {
  table->*kEntry = LateUnits<kEntry>::Launch;
}

template <auto kEntry>
void Slices(Stream& stream, const SlicesArgs& a) {
  Push(stream, "slices",
       [form = a.form, slices = Copied(a.slices, a.count)](Access& access) mutable {
         Reach(access, &form);
         if (!ReachList(access, &slices)) return;
         InlineStream now;
         (Reference().slices->*kEntry)(now, {form, slices.data(), std::ssize(slices)});
       });
}

void HashRuns(Stream& stream, const HashRunsArgs& a) {
  Push(stream, "hash_runs", [runs = Copied(a.runs, a.count)](Access& access) mutable {
    if (!ReachList(access, &runs)) return;
    InlineStream now;
    Reference().slices->hash_runs(now, {runs.data(), std::ssize(runs)});
  });
}

template <auto kEntry>
void Pages(Stream& stream, const MovePagesArgs& a) {
  Push(stream, "pages",
       [copy = a, pieces = Copied(a.pages.pieces, a.pages.piece_count),
        index = Copied(a.pages.index, a.pages.blocks)](Access& access) mutable {
         for (std::byte*& piece : pieces) access.Reach(&piece);
         access.Reach(&copy.blocks);
         access.Reach(&copy.faults);
         if (!access.ok()) return;
         copy.pages.pieces = pieces.data();
         copy.pages.index = index.data();
         InlineStream now;
         (Reference().slices->*kEntry)(now, copy);
       });
}

}  // namespace

const SelectionUnitKernels& LateSelectionUnitKernels() {
  static const SelectionUnitKernels kernels = [] {
    SelectionUnitKernels k;
    k.name = "late";
    Add<&SelectionUnitKernels::window_attention>(&k);
    Add<&SelectionUnitKernels::accumulate_attention>(&k);
    Add<&SelectionUnitKernels::reduce_rows>(&k);
    Add<&SelectionUnitKernels::pool>(&k);
    Add<&SelectionUnitKernels::chunk_means>(&k);
    Add<&SelectionUnitKernels::entropy>(&k);
    Add<&SelectionUnitKernels::row_norms>(&k);
    Add<&SelectionUnitKernels::sum_unit_rows>(&k);
    Add<&SelectionUnitKernels::cosines>(&k);
    Add<&SelectionUnitKernels::lag_scores>(&k);
    Add<&SelectionUnitKernels::query_moments>(&k);
    Add<&SelectionUnitKernels::expected_logits>(&k);
    Add<&SelectionUnitKernels::softmax>(&k);
    Add<&SelectionUnitKernels::projected_norms>(&k);
    Add<&SelectionUnitKernels::count_non_finite>(&k);
    Add<&SelectionUnitKernels::mark_top>(&k);
    Add<&SelectionUnitKernels::gather_rows>(&k);
    Add<&SelectionUnitKernels::turn_rows>(&k);
    Add<&SelectionUnitKernels::mark_budget>(&k);
    Add<&SelectionUnitKernels::split_budget>(&k);
    Add<&SelectionUnitKernels::combine_scores>(&k);
    Add<&SelectionUnitKernels::rank_scores>(&k);
    Add<&SelectionUnitKernels::chunk_marks>(&k);
    Add<&SelectionUnitKernels::spread_marks>(&k);
    return k;
  }();
  return kernels;
}

const SliceKernels& LateSliceKernels() {
  static const SliceKernels kernels = [] {
    SliceKernels k;
    k.name = "late";
    k.encode_slices = Slices<&SliceKernels::encode_slices>;
    k.decode_slices = Slices<&SliceKernels::decode_slices>;
    k.hash_runs = HashRuns;
    k.gather_pages = Pages<&SliceKernels::gather_pages>;
    k.scatter_pages = Pages<&SliceKernels::scatter_pages>;
    return k;
  }();
  return kernels;
}

}  // namespace cairn::kernels::testing
