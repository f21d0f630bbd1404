#include "kernels/slices/slice_codec.h"

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/codecs/cachegen/cachegen_codec.h"
#include "kernels/codecs/fp8/fp8_plane.h"
#include "kernels/codecs/int4/int4_plane.h"
#include "kernels/codecs/int8/int8_plane.h"
#include "kernels/codecs/mixed/mixed_plane.h"
#include "kernels/codecs/planewise_codec.h"
#include "kernels/codecs/raw/raw_plane.h"
#include "kernels/codecs/turbo/turbo_plane.h"
#include "kernels/slices/bfloat16.h"

namespace cairn::kernels {
namespace {

using codecs::Codec;
using codecs::CodecStatus;
using codecs::MutablePlane;
using codecs::SlicePlace;
using codecs::SliceShape;

std::unique_ptr<codecs::PlaneCodec> PlaneCodecOf(const PlaneForm& plane, const uint32_t* signs,
                                                 const CodecKernels& kernels) {
  switch (plane.coding) {
    case HeadCoding::kInt8:
      return std::make_unique<codecs::Int8Plane>(kernels, plane.parameter);
    case HeadCoding::kInt4Token:
      return std::make_unique<codecs::Int4TokenPlane>(kernels, plane.parameter);
    case HeadCoding::kInt4Channel:
      return std::make_unique<codecs::Int4ChannelPlane>(kernels, plane.parameter);
    case HeadCoding::kTurbo:
      return std::make_unique<codecs::TurboPlane>(kernels, plane.parameter, signs);
    case HeadCoding::kFp8:
      return std::make_unique<codecs::Fp8Plane>(kernels);
    case HeadCoding::kMixed:
      return std::make_unique<codecs::MixedPlane>(kernels, plane.parameter, plane.outliers);
    case HeadCoding::kRaw:
    case HeadCoding::kCacheGen:
      break;
  }
  return std::make_unique<codecs::RawPlane>();
}

// The memory of one thread.
struct Scratch {
  std::vector<std::byte> codec;
  std::vector<uint16_t> k, v;  // Halves of pages that hold bfloat16.
};

// One slice on its way.
class SliceRun {
 public:
  SliceRun(const Codec& codec, const SliceForm& form, const SliceTask& task, Scratch* scratch)
      : codec_(codec),
        form_(form),
        task_(task),
        scratch_(*scratch),
        shape_{task.tokens, form.k.heads, form.k.dim, form.v.heads, form.v.dim},
        place_{task.layer, task.first_position} {
    scratch_.codec.resize(codec.ScratchBytes(shape_));
  }

  void Encode() {
    if (task_.encoded_bytes != nullptr) *task_.encoded_bytes = 0;
    const bool fits = codec_.FixedSize() ? task_.bytes == MostBytes() : task_.bytes >= MostBytes();
    if (!MayTouch(!fits)) return;
    const MutablePlane k = Halves(form_.k, task_.k, &scratch_.k);
    const MutablePlane v = Halves(form_.v, task_.v, &scratch_.v);
    if (form_.bfloat16) {
      bool exact = Narrow(form_.k, task_.k, k);
      exact = Narrow(form_.v, task_.v, v) && exact;
      if (!exact) *task_.faults |= kInexactFault;
    }
    const codecs::EncodeResult done =
        codec_.Encode(Constant(k), Constant(v), task_.tokens, place_,
                      {task_.encoded, static_cast<size_t>(MostBytes())}, scratch_.codec);
    if (done.status == CodecStatus::kOk) {
      if (task_.encoded_bytes != nullptr) *task_.encoded_bytes = done.bytes;
    } else {
      *task_.faults |= done.status == CodecStatus::kNonFinite ? kNonFiniteFault : kLengthFault;
    }
  }

  void Decode() {
    const bool variable = !codec_.FixedSize();
    const bool fits =
        variable ? task_.bytes > 0 && task_.bytes <= MostBytes() : task_.bytes == MostBytes();
    if (!MayTouch(!fits)) return;
    const MutablePlane k = Halves(form_.k, task_.k, &scratch_.k);
    const MutablePlane v = Halves(form_.v, task_.v, &scratch_.v);
    if (codec_.Decode({task_.encoded, static_cast<size_t>(task_.bytes)}, k, v, task_.tokens, place_,
                      scratch_.codec, false) != CodecStatus::kOk) {
      *task_.faults |= variable ? kStreamFault : kScaleFault;
      return;
    }
    if (!form_.bfloat16) return;
    Widen(form_.k, k, task_.k);
    Widen(form_.v, v, task_.v);
  }

 private:
  uint64_t MostBytes() const { return static_cast<uint64_t>(SliceBytes(form_, task_)); }

  bool MayTouch(bool wrong_length) {
    if (wrong_length) *task_.faults |= kLengthFault;
    return !wrong_length && (*task_.faults & kHashFault) == 0;
  }

  // The plane where it lies, or room for its halves.
  MutablePlane Halves(const PlaneForm& plane, uint16_t* numbers, std::vector<uint16_t>* room) {
    if (!form_.bfloat16) {
      return {numbers, plane.heads, plane.dim, plane.head_stride, plane.token_stride};
    }
    room->resize(static_cast<size_t>(int64_t{plane.heads} * task_.tokens * plane.dim));
    return {room->data(), plane.heads, plane.dim, int64_t{task_.tokens} * plane.dim, plane.dim};
  }
  static codecs::Plane Constant(const MutablePlane& p) {
    return {p.data, p.heads, p.dim, p.head_stride, p.token_stride};
  }

  // Calls use(number in memory, its half).
  template <typename Use>
  void ForNumbers(const PlaneForm& plane, uint16_t* numbers, const MutablePlane& halves, Use use) {
    for (int64_t h = 0; h < plane.heads; ++h) {
      for (int64_t t = 0; t < task_.tokens; ++t) {
        uint16_t* const number = numbers + h * plane.head_stride + t * plane.token_stride;
        uint16_t* const half = halves.data + h * halves.head_stride + t * halves.token_stride;
        for (int64_t d = 0; d < plane.dim; ++d) use(number[d], half[d]);
      }
    }
  }
  bool Narrow(const PlaneForm& plane, uint16_t* numbers, const MutablePlane& halves) {
    bool exact = true;
    ForNumbers(plane, numbers, halves,
               [&](uint16_t number, uint16_t& half) { half = HalfOfBfloat16(number, &exact); });
    return exact;
  }
  void Widen(const PlaneForm& plane, const MutablePlane& halves, uint16_t* numbers) {
    ForNumbers(plane, numbers, halves,
               [](uint16_t& number, uint16_t half) { number = Bfloat16OfHalf(half); });
  }

  const Codec& codec_;
  const SliceForm& form_;
  const SliceTask& task_;
  Scratch& scratch_;
  const SliceShape shape_;
  const SlicePlace place_;
};

// Calls run(slice, thread's scratch) for all slices.
template <typename Run>
void ForSlices(const CodecKernels& kernels, const SlicesArgs& a, ThreadPool* pool, Run run) {
  if (a.count == 0) return;
  const std::unique_ptr<Codec> codec = CodecOf(a.form, kernels);
  std::vector<Scratch> scratch(pool == nullptr ? 1 : static_cast<size_t>(pool->threads()));
  const auto one = [&](int64_t i, int thread) {
    run(SliceRun(*codec, a.form, a.slices[i], &scratch[static_cast<size_t>(thread)]));
  };
  if (pool != nullptr) {
    pool->ParallelFor(a.count, one);
  } else {
    for (int64_t i = 0; i < a.count; ++i) one(i, 0);
  }
}

}  // namespace

std::unique_ptr<Codec> CodecOf(const SliceForm& form, const CodecKernels& kernels) {
  if (IsCacheGen(form)) {
    return std::make_unique<codecs::CacheGenCodec>(kernels, form.k.parameter, form.v.parameter,
                                                   form.sink);
  }
  return std::make_unique<codecs::PlanewiseCodec>(
      "slices", kernels, PlaneCodecOf(form.k, form.signs, kernels),
      PlaneCodecOf(form.v, form.signs, kernels), form.sink);
}

void EncodeSlices(const CodecKernels& kernels, const SlicesArgs& a, ThreadPool* pool) {
  ForSlices(kernels, a, pool, [](SliceRun run) { run.Encode(); });
}

void DecodeSlices(const CodecKernels& kernels, const SlicesArgs& a, ThreadPool* pool) {
  ForSlices(kernels, a, pool, [](SliceRun run) { run.Decode(); });
}

}  // namespace cairn::kernels
