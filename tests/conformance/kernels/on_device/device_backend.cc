#include "tests/conformance/kernels/on_device/device_backend.h"

#include "cairn/kernels/batch/head_table.h"
#include "cairn/kernels/batch/slice_table.h"
#include "cairn/kernels/batch/unit_table.h"
#include "common/device/device.h"
#include "tests/conformance/kernels/heads_as_slices.h"
#include "tests/conformance/kernels/on_device/device_pool.h"
#include "tests/conformance/kernels/on_device/device_stream.h"

namespace cairn::kernels::testing {
namespace {

// Entries of a backend's tables are functions without a state: this is theirs.
struct OpenedDevice {
  std::shared_ptr<device::Device> device;
  const batch::SliceTable* slice_table = nullptr;
  const batch::HeadTable* head_table = nullptr;
  const batch::UnitTable* unit_table = nullptr;
  std::unique_ptr<DevicePool> pool;
  CodecKernels codecs;
  SliceKernels slices;
  SelectionKernels selections;
  SelectionUnitKernels units;
  Backend backend;
};
OpenedDevice* opened = nullptr;

// The table of this name, or null if the library has none.
template <typename Table>
Result<const Table*> FindTable(device::Device* device, const char* name, uint32_t version) {
  const auto found = device->Kernels(name, version);
  if (!found.ok() && found.status().code() == StatusCode::kNotFound) return nullptr;
  CAIRN_RETURN_IF_ERROR(found.status());
  return static_cast<const Table*>(*found);
}

template <auto kTable, auto kEntry>
struct TableEntry;
template <typename Table, const Table* OpenedDevice::*kTable, typename Args,
          batch::Op<Args> Table::*kEntry>
struct TableEntry<kTable, kEntry> {
  static void Run(Stream& stream, const Args& a) {
    dynamic_cast<DeviceStream&>(stream).Launched((opened->*kTable)->name,
                                                 ((opened->*kTable)->*kEntry)(stream.native(), a));
  }
};
template <auto kEntry>
using SliceEntry = TableEntry<&OpenedDevice::slice_table, kEntry>;
template <auto kEntry>
using HeadEntry = TableEntry<&OpenedDevice::head_table, kEntry>;

struct Slices {
  static constexpr auto Encode = SliceEntry<&batch::SliceTable::encode_slices>::Run;
  static constexpr auto Decode = SliceEntry<&batch::SliceTable::decode_slices>::Run;
};

void SetSlices(CodecKernels* codecs, SliceKernels* slices) {
  codecs->name = slices->name = kDeviceBackend;
  SetHeadsAsSlices<Slices>(codecs);
  codecs->count_non_finite = HeadEntry<&batch::HeadTable::count_non_finite>::Run;
  codecs->lattice_encode = HeadEntry<&batch::HeadTable::lattice_encode>::Run;
  codecs->lattice_decode = HeadEntry<&batch::HeadTable::lattice_decode>::Run;
  codecs->end_streaming = [](Stream&) {};
  slices->encode_slices = Slices::Encode;
  slices->decode_slices = Slices::Decode;
  slices->hash_runs = SliceEntry<&batch::SliceTable::hash_runs>::Run;
  slices->gather_pages = SliceEntry<&batch::SliceTable::gather_pages>::Run;
  slices->scatter_pages = SliceEntry<&batch::SliceTable::scatter_pages>::Run;
}

template <auto kEntry>
struct UnitEntry;
template <typename Args, batch::UnitsLaunch<Args> batch::UnitTable::*kEntry>
struct UnitEntry<kEntry> {
  static void Many(Stream& stream, const UnitsArgs<Args>& a) {
    dynamic_cast<DeviceStream&>(stream).Launched("units",
                                                 (opened->unit_table->*kEntry)(stream.native(), a));
  }
  static void One(Stream& stream, const Args& a) { Many(stream, {&a, 1}); }
};

// Both tables have an entry of this name.
#define CAIRN_BOTH(entry)                                   \
  units->entry = UnitEntry<&batch::UnitTable::entry>::Many; \
  single->entry = UnitEntry<&batch::UnitTable::entry>::One

void SetUnits(SelectionKernels* single, SelectionUnitKernels* units) {
  single->name = units->name = kDeviceBackend;
  CAIRN_BOTH(window_attention);
  CAIRN_BOTH(accumulate_attention);
  CAIRN_BOTH(reduce_rows);
  CAIRN_BOTH(pool);
  CAIRN_BOTH(chunk_means);
  CAIRN_BOTH(entropy);
  CAIRN_BOTH(row_norms);
  CAIRN_BOTH(sum_unit_rows);
  CAIRN_BOTH(cosines);
  CAIRN_BOTH(lag_scores);
  CAIRN_BOTH(query_moments);
  CAIRN_BOTH(expected_logits);
  CAIRN_BOTH(softmax);
  CAIRN_BOTH(projected_norms);
  CAIRN_BOTH(count_non_finite);
  CAIRN_BOTH(mark_top);
  CAIRN_BOTH(gather_rows);
  CAIRN_BOTH(turn_rows);
  units->mark_budget = UnitEntry<&batch::UnitTable::mark_budget>::Many;
  units->split_budget = UnitEntry<&batch::UnitTable::split_budget>::Many;
  units->combine_scores = UnitEntry<&batch::UnitTable::combine_scores>::Many;
  units->rank_scores = UnitEntry<&batch::UnitTable::rank_scores>::Many;
  units->chunk_marks = UnitEntry<&batch::UnitTable::chunk_marks>::Many;
  units->spread_marks = UnitEntry<&batch::UnitTable::spread_marks>::Many;
}

#undef CAIRN_BOTH

}  // namespace

Result<const Backend*> OpenDeviceBackend(const std::string& library, uint32_t ordinal) {
  CAIRN_ASSIGN_OR_RETURN(const auto driver, device::Driver::Load(library));
  auto made = std::make_unique<OpenedDevice>();
  CAIRN_ASSIGN_OR_RETURN(made->device, driver->Open(ordinal));
  device::Device* const device = made->device.get();
  CAIRN_ASSIGN_OR_RETURN(
      made->slice_table,
      FindTable<batch::SliceTable>(device, batch::kSliceTableName, batch::kSliceTableVersion));
  CAIRN_ASSIGN_OR_RETURN(
      made->head_table,
      FindTable<batch::HeadTable>(device, batch::kHeadTableName, batch::kHeadTableVersion));
  CAIRN_ASSIGN_OR_RETURN(
      made->unit_table,
      FindTable<batch::UnitTable>(device, batch::kUnitTableName, batch::kUnitTableVersion));
  // The one with more entries, where the device has it.
  const batch::ForwardKernels* forward = nullptr;
  for (const char* name : {batch::kForwardTable90aName, batch::kForwardTableName}) {
    if (forward != nullptr) break;
    CAIRN_ASSIGN_OR_RETURN(
        forward, FindTable<batch::ForwardKernels>(device, name, batch::kForwardTableVersion));
  }
  made->pool = std::make_unique<DevicePool>(made->device);
  SetSlices(&made->codecs, &made->slices);
  SetUnits(&made->selections, &made->units);
  const bool has_slices = made->slice_table != nullptr, has_units = made->unit_table != nullptr;
  const bool has_codecs = has_slices && made->head_table != nullptr;
  made->backend = Backend{.name = kDeviceBackend,
                          .codecs = has_codecs ? &made->codecs : nullptr,
                          .selections = has_units ? &made->selections : nullptr,
                          .selection_units = has_units ? &made->units : nullptr,
                          .slices = has_slices ? &made->slices : nullptr,
                          .batch_forward = forward,
                          .memory = made->pool.get(),
                          .new_stream = []() -> std::unique_ptr<Stream> {
                            return std::make_unique<DeviceStream>(opened->device);
                          }};
  opened = made.release();
  return &opened->backend;
}

}  // namespace cairn::kernels::testing
