#include "kernels/method_tables.h"

#include "cairn/kernels/selection/inline_units.h"

namespace cairn::kernels {
namespace {

template <Isa kIsa>
const SelectionKernels& SelectionsOf() {
  return CpuSelectionKernels(kIsa);
}
template <auto kTable>
const SelectionUnitKernels& UnitsOf() {
  static const SelectionUnitKernels units = InlineUnits<kTable>::Table();
  return units;
}
// Those of the instruction set whose kernels `isa` has.
const SelectionUnitKernels& UnitsOf(Isa isa) {
  if (isa == Isa::kPortable) return UnitsOf<SelectionsOf<Isa::kPortable>>();
  if (isa == Isa::kNeon) return UnitsOf<SelectionsOf<Isa::kNeon>>();
  if (isa == Isa::kAvx2) return UnitsOf<SelectionsOf<Isa::kAvx2>>();
  return UnitsOf<SelectionsOf<Isa::kAvx512>>();
}

}  // namespace

void AddReferenceMethods(Backend* backend) {
  backend->selections = &ReferenceSelectionKernels();
  backend->selection_units = &UnitsOf<ReferenceSelectionKernels>();
  backend->reading = &ReferenceReadingKernels();
}

void AddCpuMethods(Isa isa, Backend* backend) {
  backend->selections = &CpuSelectionKernels(isa);
  backend->selection_units = &UnitsOf(isa);
  backend->reading = &CpuReadingKernels(isa);
}

}  // namespace cairn::kernels
