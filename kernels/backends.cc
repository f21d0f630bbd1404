// The one list of backends. Another one is a folder, and a line here if it needs no more than this
// machine's processor, or a call of RegisterBackend if it is found at run time.

#include <mutex>

#include "cairn/kernels/backend.h"
#include "kernels/method_tables.h"
#include "kernels/slices/inline_slices.h"

namespace cairn::kernels {
namespace {

constexpr Isa kIsas[] = {Isa::kPortable, Isa::kNeon,       Isa::kAvx2,
                         Isa::kAvx512,   Isa::kAvx512Bf16, Isa::kAmx};

std::unique_ptr<Stream> NewInlineStream() { return std::make_unique<InlineStream>(); }

template <Isa kIsa>
const CodecKernels& CodecsOf() {
  return CpuCodecKernels(kIsa);
}
template <auto kTable>
const SliceKernels& SlicesOf() {
  static const SliceKernels slices = InlineSlices<kTable>();
  return slices;
}
// Those of the instruction set whose kernels `isa` has.
const SliceKernels& SlicesOf(Isa isa) {
  if (isa == Isa::kPortable) return SlicesOf<CodecsOf<Isa::kPortable>>();
  if (isa == Isa::kNeon) return SlicesOf<CodecsOf<Isa::kNeon>>();
  if (isa == Isa::kAvx2) return SlicesOf<CodecsOf<Isa::kAvx2>>();
  return SlicesOf<CodecsOf<Isa::kAvx512>>();
}

Backend OnHost(std::string_view name, const ForwardKernels& forward, const CodecKernels& codecs,
               const SliceKernels& slices) {
  static HostMemory memory;
  return {.name = name,
          .forward = &forward,
          .codecs = &codecs,
          .slices = &slices,
          .memory = &memory,
          .new_stream = NewInlineStream,
          .runs_inline = true};
}

Backend Reference() {
  Backend backend = OnHost("reference", ReferenceForwardKernels(), ReferenceCodecKernels(),
                           SlicesOf<ReferenceCodecKernels>());
  AddReferenceMethods(&backend);
  backend.is_definition = true;
  return backend;
}

// Thread-safe.
class Registry {
 public:
  Registry() {
    static const Backend reference = Reference();
    all_.push_back(&reference);
    static const std::vector<Backend> cpus = [] {
      std::vector<Backend> list;
      for (const Isa isa : kIsas) {
        if (!Supports(isa)) continue;
        list.push_back(
            OnHost(Name(isa), CpuForwardKernels(isa), CpuCodecKernels(isa), SlicesOf(isa)));
        AddCpuMethods(isa, &list.back());
      }
      return list;
    }();
    for (const Backend& cpu : cpus) all_.push_back(&cpu);
    best_cpu_ = all_.back();
  }

  std::vector<const Backend*> all() const {
    const std::lock_guard lock(mutex_);
    return all_;
  }
  const Backend& best_cpu() const { return *best_cpu_; }
  void Add(const Backend& backend) {
    const std::lock_guard lock(mutex_);
    all_.push_back(&backend);
  }

 private:
  const Backend* best_cpu_ = nullptr;  // Constant.
  mutable std::mutex mutex_;
  std::vector<const Backend*> all_;
};

Registry& TheRegistry() {
  static Registry registry;
  return registry;
}

}  // namespace

std::vector<const Backend*> Backends() { return TheRegistry().all(); }

std::vector<MissingBackend> MissingBackends() {
  std::vector<MissingBackend> missing;
  for (const Isa isa : kIsas) {
    if (!Supports(isa)) missing.push_back({Name(isa), "this machine has no such instructions"});
  }
  return missing;
}

const Backend* FindBackend(std::string_view name) {
  for (const Backend* backend : Backends()) {
    if (backend->name == name) return backend;
  }
  return nullptr;
}

const Backend& BestCpuBackend() { return TheRegistry().best_cpu(); }

void RegisterBackend(const Backend& backend) { TheRegistry().Add(backend); }

}  // namespace cairn::kernels
