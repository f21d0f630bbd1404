#pragma once
// Slices of one form, coded on the host by the codec that the form names.

#include <memory>

#include "cairn/kernels/codec/slice_kernels.h"
#include "cairn/kernels/thread_pool.h"
#include "kernels/codecs/codec.h"

namespace cairn::kernels {

// `kernels`, and the signs of the form where it has some, must outlive the codec. REQUIRES: kernels
// of a backend that runs inline.
std::unique_ptr<codecs::Codec> CodecOf(const SliceForm& form, const CodecKernels& kernels);

// SliceKernels::encode_slices and decode_slices. The threads of `pool` share the slices; null: all
// are coded by the calling thread. cachegen's streams have kStreamFault whatever is wrong with
// them. REQUIRES: with a pool, no two slices share a word of faults.
void EncodeSlices(const CodecKernels& kernels, const SlicesArgs& a, ThreadPool* pool);
void DecodeSlices(const CodecKernels& kernels, const SlicesArgs& a, ThreadPool* pool);

}  // namespace cairn::kernels
