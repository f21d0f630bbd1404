#pragma once
// Everything that runs on one kind of hardware: the tables of operations, the memory in which they
// work and the streams on which they run. There is one list of backends, for choosing one by name
// and for tests: each conformance suite of kernels loops over all backends of the list.

#include <memory>
#include <string_view>
#include <vector>

#include "cairn/kernels/batch/forward_kernels.h"
#include "cairn/kernels/codec/codec_kernels.h"
#include "cairn/kernels/codec/slice_kernels.h"
#include "cairn/kernels/forward_kernels.h"
#include "cairn/kernels/isa.h"
#include "cairn/kernels/memory.h"
#include "cairn/kernels/reading/reading_kernels.h"
#include "cairn/kernels/selection/selection_kernels.h"
#include "cairn/kernels/selection/unit_kernels.h"
#include "cairn/kernels/stream.h"

namespace cairn::kernels {

// Constant once registered: any thread may read it.
struct Backend {
  std::string_view name;  // "reference", Name(isa), or one of its own.

  // A backend may lack a family: null.
  const ForwardKernels* forward = nullptr;
  const CodecKernels* codecs = nullptr;
  const SelectionKernels* selections = nullptr;
  // Selections of many units at a time: to the last bit what `selections` gives.
  const SelectionUnitKernels* selection_units = nullptr;
  // Codecs of many slices at a time.
  const SliceKernels* slices = nullptr;
  // The forward pass in operations on whole batches. CPUs lack it: there threads share the rows and
  // heads of `forward`.
  const batch::ForwardKernels* batch_forward = nullptr;
  // Decoding over a context of which a copy is near.
  const ReadingKernels* reading = nullptr;

  Memory* memory = nullptr;
  std::unique_ptr<Stream> (*new_stream)() = nullptr;

  // Operations run inside the call, on memory that the host may read and write: no copies and no
  // waiting are needed. Codecs, selections and the transformer on CPUs need this.
  bool runs_inline = false;
  // The arithmetic is that of reference/. Others agree with it within the bounds of the suites,
  // while they agree among each other to the last bit where a table promises that.
  bool is_definition = false;
};

// Why a backend that this program knows is not in the list.
struct MissingBackend {
  std::string_view name;
  std::string_view reason;
};

// Every backend that works on this machine: "reference", the instruction sets from the worst to the
// best, then those that were registered. Thread-safe.
std::vector<const Backend*> Backends();
std::vector<MissingBackend> MissingBackends();
// Null: there is none of this name on this machine.
const Backend* FindBackend(std::string_view name);
// The backend of the best instruction set.
const Backend& BestCpuBackend();

// Adds a backend at the end of the list, for the rest of the process: it must live that long.
// REQUIRES: a new name, memory and new_stream. Thread-safe.
void RegisterBackend(const Backend& backend);

}  // namespace cairn::kernels
