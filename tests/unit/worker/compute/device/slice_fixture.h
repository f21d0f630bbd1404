#pragma once
// Code that tests of slices on a device share: a fake device whose kernels are the real ones'
// emulation, a mirror of pages there, codecs and numbers.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "cairn/kernels/batch/slice_table.h"
#include "kernels/codecs/slice_forms.h"
#include "services/worker/compute/device/kv_mirror.h"
#include "tests/support/fake_device/fake_devices.h"
#include "tests/support/fake_kernels/slice_kernels.h"

namespace cairn::worker::testing {

inline constexpr KvLayout kSliceKv{.layers = 2, .kv_heads = 2, .head_dim = 64, .block_tokens = 64};

// A codec, and its parameters in order.
struct CodecCase {
  std::string codec;
  std::vector<int64_t> values;
};
inline const CodecCase kCodecCases[] = {
    {"raw", {}},  {"int8", {64, 0}},     {"int4", {64, 1}},        {"turbo", {4, 2, 1}},
    {"fp8", {0}}, {"mixed", {64, 2, 1}}, {"cachegen", {10, 10, 1}}};

// The form of slices with `heads` heads, whose numbers lie as in pages.
inline kernels::SliceForm FormOf(const CodecCase& c, const KvLayout& kv, int32_t heads) {
  kernels::SliceForm form = *codecs::SliceFormOf(c.codec, c.values);
  for (kernels::PlaneForm* const plane : {&form.k, &form.v}) {
    plane->heads = heads;
    plane->dim = kv.head_dim;
    plane->head_stride = int64_t{kv.block_tokens} * kv.head_dim;
    plane->token_stride = kv.head_dim;
  }
  return form;
}

class SliceFixture : public ::testing::Test {
 protected:
  // A new device. REQUIRES: nothing uses the last one.
  void StartDevice(uint64_t seed, int64_t slots) {
    mirror_.reset();
    device_.reset();
    fake_.reset();
    fake_ = std::make_unique<device::fake::FakeDevices>(device::fake::FakeOptions{.seed = seed});
    kernels::testing::AddSliceKernels(fake_->control());
    device_ = fake_->Open();
    mirror_ = *KvMirror::Create(device_, kSliceKv, slots);
    kernels_ = static_cast<const kernels::batch::SliceTable*>(
        *device_->Kernels(kernels::batch::kSliceTableName, kernels::batch::kSliceTableVersion));
  }
  // A half of either sign between 1/16 and 2.
  uint16_t RandomHalf() {
    return static_cast<uint16_t>((random_() & 0x8000) | (0x2c00 + random_() % 0x1400));
  }

  std::mt19937 random_{7};
  std::unique_ptr<device::fake::FakeDevices> fake_;
  std::shared_ptr<device::Device> device_;
  std::unique_ptr<KvMirror> mirror_;
  const kernels::batch::SliceTable* kernels_ = nullptr;
};

}  // namespace cairn::worker::testing
