// Operations on many slices, on every backend that has them: the bytes and halves that a codec of
// the definition gives slice by slice, and a word of faults for each slice.

#include <xxhash.h>

#include <cstring>
#include <map>
#include <optional>

#include "cairn/kernels/codec/slice_kernels.h"
#include "kernels/codecs/slice_forms.h"
#include "tests/conformance/codecs/case.h"
#include "tests/conformance/kernels/case.h"

namespace cairn::codecs {
namespace {

using kernels::HashRun;
using kernels::SliceForm;
using kernels::SliceKernels;
using kernels::SliceTask;
using kernels::testing::Device;
using kernels::testing::Guarded;
using testing::CodecCase;
using testing::TestSlice;

// The form of a codec's slices.
SliceForm FormOf(const CodecCase& codec) {
  const std::optional<SliceForm> form = SliceFormOf(codec.name, codec.values);
  EXPECT_TRUE(form) << "the codec has no form: see kernels/README.md";
  return form.value_or(SliceForm());
}

uint16_t Bfloat16Of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return static_cast<uint16_t>(bits >> 16);
}

// A slice in the memory of a device.
struct Placed {
  SlicePlace place;
  SliceShape shape;
  std::vector<uint16_t> k, v;      // Numbers with gaps, as they lie in memory.
  std::vector<std::byte> encoded;  // The bytes that the definition makes of them.
  // The numbers that it decodes, over numbers that are all 0x1234; not of bfloat16.
  std::vector<uint16_t> decoded_k, decoded_v;
};

class SlicesTest : public ::testing::TestWithParam<std::tuple<CodecCase, std::string>> {
 protected:
  static constexpr int64_t kHeads = 2, kGap = 8, kTokens = 70;

  void SetUp() override {
    const std::string why =
        kernels::testing::WhySkipped(std::get<1>(GetParam()), &kernels::Backend::slices);
    if (!why.empty()) GTEST_SKIP() << why;
    here_.emplace(*kernels::FindBackend(std::get<1>(GetParam())));
    codec_ = MakeCodec(test().name, test().values, kernels::ReferenceCodecKernels());
  }
  const CodecCase& test() const { return std::get<0>(GetParam()); }
  Device& here() { return *here_; }

  static int64_t Stride(int64_t dim) { return dim + kGap; }
  static size_t Numbers(int64_t dim) { return static_cast<size_t>(kHeads * kTokens * Stride(dim)); }
  SliceForm Form(const SliceShape& shape) const {
    SliceForm form = FormOf(test());
    const auto plane = [](kernels::PlaneForm* p, int64_t heads, int64_t dim) {
      p->heads = static_cast<int32_t>(heads);
      p->dim = static_cast<int32_t>(dim);
      p->token_stride = Stride(dim);
      p->head_stride = kTokens * Stride(dim);
    };
    plane(&form.k, shape.k_heads, shape.k_dim);
    plane(&form.v, shape.v_heads, shape.v_dim);
    return form;
  }
  static Plane PlaneOf(const std::vector<uint16_t>& numbers, int64_t heads, int64_t dim) {
    return {numbers.data(), heads, dim, kTokens * Stride(dim), Stride(dim)};
  }

  // Slices of many lengths, layers and positions. The definition is slow, so those of the last case
  // are kept for the next backend.
  const std::vector<Placed>& Slices(const SliceShape& most, bool bfloat16 = false) {
    static std::string label;
    static std::map<std::tuple<int64_t, int64_t, bool>, std::vector<Placed>> kept;
    if (label != test().Label()) kept.clear();
    label = test().Label();
    std::vector<Placed>& slices = kept[{most.k_dim, most.v_dim, bfloat16}];
    if (slices.empty()) slices = NewSlices(most, bfloat16);
    return slices;
  }
  std::vector<Placed> NewSlices(const SliceShape& most, bool bfloat16) const {
    std::vector<Placed> all;
    std::mt19937 rng(5);
    std::normal_distribution<float> normal;
    for (const int64_t tokens : {64, 1, 70, 0, 33, 64}) {
      Placed p;
      p.shape = most;
      p.shape.tokens = tokens;
      const auto n = static_cast<int64_t>(all.size());
      p.place = {n * 3, n % 2 == 0 ? 0 : n * 64};
      for (auto* plane : {&p.k, &p.v}) {
        plane->resize(Numbers(plane == &p.k ? most.k_dim : most.v_dim));
        for (uint16_t& x : *plane) {
          const float f = normal(rng);
          // bfloat16 numbers with few bits are halves too.
          x = bfloat16 ? Bfloat16Of(f + (f < 0 ? -0.5f : 0.5f)) : testing::ToHalf(f);
        }
      }
      p.encoded = Encoded(p, bfloat16);
      if (!bfloat16) {
        EXPECT_TRUE(Decode(p, &p.decoded_k, &p.decoded_v));
      }
      all.push_back(std::move(p));
    }
    return all;
  }
  static std::vector<uint16_t> AsHalves(std::vector<uint16_t> numbers) {
    for (uint16_t& x : numbers) {
      const uint32_t bits = static_cast<uint32_t>(x) << 16;
      float f;
      std::memcpy(&f, &bits, 4);
      x = testing::ToHalf(f);
    }
    return numbers;
  }
  std::vector<std::byte> Encoded(const Placed& p, bool bfloat16) const {
    std::vector<std::byte> bytes(codec_->MaxEncodedBytes(p.shape, p.place));
    const std::vector<uint16_t> k = bfloat16 ? AsHalves(p.k) : p.k;
    const std::vector<uint16_t> v = bfloat16 ? AsHalves(p.v) : p.v;
    std::vector<std::byte> scratch = testing::ScratchOf(*codec_, p.shape);
    const EncodeResult done = codec_->Encode(PlaneOf(k, p.shape.k_heads, p.shape.k_dim),
                                             PlaneOf(v, p.shape.v_heads, p.shape.v_dim),
                                             p.shape.tokens, p.place, bytes, scratch);
    EXPECT_EQ(done.status, CodecStatus::kOk);
    bytes.resize(done.bytes);
    return bytes;
  }
  // The numbers that the definition decodes, over numbers that are all 0x1234. False: it refuses
  // the bytes.
  bool Decode(const Placed& p, std::vector<uint16_t>* k, std::vector<uint16_t>* v) const {
    k->assign(Numbers(p.shape.k_dim), 0x1234);
    v->assign(Numbers(p.shape.v_dim), 0x1234);
    const auto plane = [](std::vector<uint16_t>* numbers, int64_t heads, int64_t dim) {
      return MutablePlane{numbers->data(), heads, dim, kTokens * Stride(dim), Stride(dim)};
    };
    std::vector<std::byte> scratch = testing::ScratchOf(*codec_, p.shape);
    return codec_->Decode(p.encoded, plane(k, p.shape.k_heads, p.shape.k_dim),
                          plane(v, p.shape.v_heads, p.shape.v_dim), p.shape.tokens, p.place,
                          scratch, false) == CodecStatus::kOk;
  }

  // Halves to bfloat16, to nearest even.
  static void Round(int64_t heads, int64_t tokens, int64_t dim, std::vector<uint16_t>* numbers) {
    for (int64_t i = 0; i < heads * tokens * dim; ++i) {
      const int64_t row = i / dim / tokens * kTokens + i / dim % tokens;
      uint16_t& x = (*numbers)[static_cast<size_t>(row * Stride(dim) + i % dim)];
      const float f = testing::FromHalf(x);
      uint32_t bits;
      std::memcpy(&bits, &f, 4);
      x = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
  }

  // Without the addresses of the slice.
  SliceTask TaskOf(const SliceForm& form, const Placed& p) {
    SliceTask task;
    task.bytes = p.encoded.size();
    task.first_position = p.place.first_position;
    task.tokens = static_cast<int32_t>(p.shape.tokens);
    task.layer = static_cast<int32_t>(p.place.layer);
    task.scratch = here().Scratch(static_cast<size_t>(SliceScratchBytes(form, task)));
    return task;
  }

  std::unique_ptr<Codec> codec_;
  std::mt19937 rng_{5};

 private:
  std::optional<Device> here_;
};

const SliceShape kShapes[] = {{0, 2, 64, 2, 64}, {0, 2, 128, 1, 64}, {0, 1, 256, 2, 512}};

TEST_P(SlicesTest, EncodeGivesTheBytesOfTheDefinitionAtAnyAddress) {
  for (const SliceShape& shape : kShapes) {
    for (const bool bfloat16 : {false, true}) {
      const std::vector<Placed>& slices = Slices(shape, bfloat16);
      Guarded<uint32_t> faults(here(), static_cast<int64_t>(slices.size()));
      Guarded<uint64_t> sizes(here(), static_cast<int64_t>(slices.size()));
      std::vector<std::unique_ptr<Guarded<std::byte>>> out;
      std::vector<SliceTask> tasks;
      SliceForm form = Form(shape);
      form.bfloat16 = bfloat16;
      for (size_t i = 0; i < slices.size(); ++i) {
        // Slices begin where the one before ends: at even addresses, or behind some odd part.
        const size_t skew = i * 3;
        SliceTask task = TaskOf(form, slices[i]);
        ASSERT_LE(task.bytes, static_cast<uint64_t>(SliceBytes(form, task)));
        task.bytes = static_cast<uint64_t>(SliceBytes(form, task));
        out.push_back(std::make_unique<Guarded<std::byte>>(
            here(), static_cast<int64_t>(task.bytes + skew), std::byte{0x77}));
        task.encoded_bytes = sizes.get() + i;
        task.encoded = out[i]->get() + skew;
        task.k = here().In(slices[i].k);
        task.v = here().In(slices[i].v);
        task.faults = faults.get() + i;
        tasks.push_back(task);
      }
      here().Run(&SliceKernels::encode_slices,
                 {form, tasks.data(), static_cast<int64_t>(tasks.size())});
      EXPECT_EQ(faults.Read(), std::vector<uint32_t>(slices.size(), 0));
      for (size_t i = 0; i < slices.size(); ++i) {
        std::vector<std::byte> want(i * 3, std::byte{0x77});
        want.insert(want.end(), slices[i].encoded.begin(), slices[i].encoded.end());
        std::vector<std::byte> got = out[i]->Read();
        if (IsCacheGen(form)) {
          ASSERT_EQ(sizes.Read()[i], slices[i].encoded.size()) << "slice " << i;
          got.resize(want.size());  // The rest is unspecified.
        }
        ASSERT_EQ(got, want) << "slice " << i << ", dim " << shape.k_dim;
      }
    }
  }
}

TEST_P(SlicesTest, DecodeGivesTheNumbersOfTheDefinitionAndTouchesNoOthers) {
  for (const SliceShape& shape : kShapes) {
    for (const bool bfloat16 : {false, true}) {
      const std::vector<Placed>& slices = Slices(shape);
      Guarded<uint32_t> faults(here(), static_cast<int64_t>(slices.size()));
      std::vector<std::unique_ptr<Guarded<uint16_t>>> k, v;
      std::vector<SliceTask> tasks;
      SliceForm form = Form(shape);
      form.bfloat16 = bfloat16;
      for (size_t i = 0; i < slices.size(); ++i) {
        std::vector<std::byte> bytes(i * 5 % 16);
        bytes.insert(bytes.end(), slices[i].encoded.begin(), slices[i].encoded.end());
        SliceTask task = TaskOf(form, slices[i]);
        task.encoded = here().In(bytes) + i * 5 % 16;
        for (auto* planes : {&k, &v}) {
          const int64_t dim = planes == &k ? shape.k_dim : shape.v_dim;
          planes->push_back(std::make_unique<Guarded<uint16_t>>(
              here(), static_cast<int64_t>(Numbers(dim)), 0x1234));
        }
        task.k = k[i]->get();
        task.v = v[i]->get();
        task.faults = faults.get() + i;
        tasks.push_back(task);
      }
      here().Run(&SliceKernels::decode_slices,
                 {form, tasks.data(), static_cast<int64_t>(tasks.size())});
      EXPECT_EQ(faults.Read(), std::vector<uint32_t>(slices.size(), 0));
      for (size_t i = 0; i < slices.size(); ++i) {
        std::vector<uint16_t> want_k = slices[i].decoded_k, want_v = slices[i].decoded_v;
        if (bfloat16) {
          Round(slices[i].shape.k_heads, slices[i].shape.tokens, shape.k_dim, &want_k);
          Round(slices[i].shape.v_heads, slices[i].shape.tokens, shape.v_dim, &want_v);
        }
        ASSERT_EQ(k[i]->Read(), want_k) << "slice " << i << ", dim " << shape.k_dim;
        ASSERT_EQ(v[i]->Read(), want_v) << "slice " << i << ", dim " << shape.v_dim;
      }
    }
  }
}

TEST_P(SlicesTest, FaultsAreToldForTheSliceThatHasThem) {
  const SliceShape shape = kShapes[1];
  const std::vector<Placed>& slices = Slices(shape);
  Guarded<uint32_t> faults(here(), static_cast<int64_t>(slices.size()));
  std::vector<std::unique_ptr<Guarded<uint16_t>>> k;
  std::vector<SliceTask> tasks;
  std::vector<HashRun> runs;
  for (size_t i = 0; i < slices.size(); ++i) {
    std::vector<std::byte> bytes = slices[i].encoded;
    SliceTask task = TaskOf(Form(shape), slices[i]);
    HashRun run;
    run.expected = XXH3_64bits(bytes.data(), bytes.size());
    if (i == 2) bytes[bytes.size() / 2] ^= std::byte{1};
    if (i == 4) ++task.bytes;
    task.encoded = here().In(bytes);
    k.push_back(std::make_unique<Guarded<uint16_t>>(
        here(), static_cast<int64_t>(Numbers(shape.k_dim)), 0x1234));
    task.k = k[i]->get();
    task.v = here().Allocate<uint16_t>(Numbers(shape.v_dim));
    task.faults = faults.get() + i;
    run.in = task.encoded;
    run.bytes = bytes.size();
    run.faults = task.faults;
    tasks.push_back(task);
    runs.push_back(run);
  }
  here().Run(&SliceKernels::hash_runs, {runs.data(), static_cast<int64_t>(runs.size())});
  here().Run(&SliceKernels::decode_slices,
             {Form(shape), tasks.data(), static_cast<int64_t>(tasks.size())});
  // A longer slice of cachegen is possible, but not with these bytes.
  const uint32_t longer = IsCacheGen(Form(shape)) ? kernels::kStreamFault : kernels::kLengthFault;
  EXPECT_EQ(faults.Read(), (std::vector<uint32_t>{0, 0, kernels::kHashFault, 0, longer, 0}));
  for (const size_t i : {2, 4}) {
    EXPECT_EQ(k[i]->Read(), std::vector<uint16_t>(Numbers(shape.k_dim), 0x1234))
        << "a slice with a fault is not decoded";
  }
  EXPECT_EQ(k[5]->Read(), slices[5].decoded_k) << "others are";
}

TEST_P(SlicesTest, EncodingRefusesNumbersThatAreNoFiniteHalves) {
  const SliceShape shape = kShapes[0];
  SliceForm form = Form(shape);
  form.bfloat16 = true;
  // 2^17, a bit more than 2^-24, and infinity.
  constexpr uint16_t kTooLarge = 0x4800, kTooFine = 0x3381, kInfinity = 0x7f80;
  for (const uint16_t number : {kTooLarge, kTooFine, kInfinity}) {
    Placed p = Slices(shape, true)[0];
    p.k[static_cast<size_t>(5 * Stride(shape.k_dim) + 3)] = number;
    Guarded<uint32_t> faults(here(), 1);
    SliceTask task = TaskOf(form, p);
    Guarded<uint64_t> size(here(), 1, 1);
    task.bytes = static_cast<uint64_t>(SliceBytes(form, task));
    task.encoded = here().Allocate<std::byte>(task.bytes);
    task.encoded_bytes = size.get();
    task.k = here().In(p.k);
    task.v = here().In(p.v);
    task.faults = faults.get();
    here().Run(&SliceKernels::encode_slices, {form, &task, 1});
    const uint32_t told = faults.Read()[0];
    if (number == kInfinity) {
      EXPECT_EQ(told, test().name == "raw" ? 0 : kernels::kNonFiniteFault);
    } else {
      EXPECT_EQ(told & kernels::kInexactFault, kernels::kInexactFault) << number;
    }
    if (IsCacheGen(form) && number == kInfinity) {
      EXPECT_EQ(size.Read()[0], 0u) << "there are no bytes";
    }
  }
}

// Bytes are changed, or some are left out.
TEST_P(SlicesTest, DamagedBytesAreRefusedWhereTheDefinitionRefusesThem) {
  const SliceShape shape = kShapes[0];
  const SliceForm form = Form(shape);
  std::vector<Placed> slices;
  for (int i = 0; i < 4; ++i) {
    for (Placed p : Slices(shape)) {
      if (p.encoded.size() < 16) continue;
      // The first bytes have the lengths and headers of cachegen.
      const size_t at = rng_() % (i % 2 == 0 ? 64 : p.encoded.size());
      if (i == 3 && !codec_->FixedSize()) {
        p.encoded.resize(p.encoded.size() - 2);
      } else {
        p.encoded[at % p.encoded.size()] ^= static_cast<std::byte>(1u << rng_() % 8);
      }
      slices.push_back(std::move(p));
    }
  }
  Guarded<uint32_t> faults(here(), static_cast<int64_t>(slices.size()));
  std::vector<std::unique_ptr<Guarded<uint16_t>>> k;
  std::vector<SliceTask> tasks;
  for (size_t i = 0; i < slices.size(); ++i) {
    SliceTask task = TaskOf(form, slices[i]);
    task.encoded = here().In(slices[i].encoded);
    k.push_back(std::make_unique<Guarded<uint16_t>>(
        here(), static_cast<int64_t>(Numbers(shape.k_dim)), 0x1234));
    task.k = k[i]->get();
    task.v = here().Allocate<uint16_t>(Numbers(shape.v_dim));
    task.faults = faults.get() + i;
    tasks.push_back(task);
  }
  here().Run(&SliceKernels::decode_slices,
             {form, tasks.data(), static_cast<int64_t>(tasks.size())});
  const std::vector<uint32_t> told = faults.Read();
  for (size_t i = 0; i < slices.size(); ++i) {
    std::vector<uint16_t> want_k, want_v;
    const bool good = Decode(slices[i], &want_k, &want_v);
    ASSERT_EQ(told[i] == 0, good) << "slice " << i << ", faults " << told[i];
    if (good) {
      ASSERT_EQ(k[i]->Read(), want_k) << "slice " << i;
    }
  }
}

// A head of selected rows is a slice of one head: its rows are gathered, then coded.
TEST_P(SlicesTest, SelectedRowsAreGatheredAndCodedAsASliceOfOneHead) {
  ASSERT_NE(here().backend().selection_units, nullptr) << "rows cannot be gathered";
  const int64_t dim = 64, tokens = 50, block = 16;
  const SliceShape shape{0, 1, dim, 1, dim};
  // Pages of keys and values, and the rows that each unit keeps.
  const auto page_numbers = static_cast<size_t>(2 * block * dim);
  std::vector<std::vector<uint16_t>> pages;
  std::vector<const std::byte*> addresses;
  std::normal_distribution<float> normal;
  for (int64_t t = 0; t < tokens; t += block) {
    pages.emplace_back(page_numbers);
    for (uint16_t& x : pages.back()) x = testing::ToHalf(normal(rng_));
    addresses.push_back(reinterpret_cast<const std::byte*>(pages.back().data()));
  }
  kernels::PagedKv host;
  host.pages = addresses.data();
  host.block_tokens = block;
  host.head_dim = dim;
  host.v_offset = static_cast<size_t>(block * dim) * sizeof(uint16_t);
  const kernels::PagedKv kv = here().In(host, tokens, page_numbers * sizeof(uint16_t));
  const std::vector<std::vector<int32_t>> kept = {{0, 3, 4, 17, 49}, {20}, {1, 2, 16, 31, 32, 48}};

  SliceForm form = Form(shape);
  form.k.token_stride = form.v.token_stride = dim;
  Guarded<uint32_t> faults(here(), std::ssize(kept));
  Guarded<uint64_t> sizes(here(), std::ssize(kept));
  std::vector<kernels::GatherRowsArgs> gathers;
  std::vector<SliceTask> tasks;
  std::vector<std::unique_ptr<Guarded<std::byte>>> out;
  for (size_t i = 0; i < kept.size(); ++i) {
    SliceTask task;
    task.tokens = static_cast<int32_t>(kept[i].size());
    task.layer = 3;
    // Where the first row is the sequence's.
    task.first_position = kept[i][0] == 0 ? 0 : 1;
    task.bytes = static_cast<uint64_t>(SliceBytes(form, task));
    out.push_back(std::make_unique<Guarded<std::byte>>(here(), static_cast<int64_t>(task.bytes)));
    task.encoded = out[i]->get();
    task.encoded_bytes = sizes.get() + i;
    task.faults = faults.get() + i;
    task.scratch = here().Scratch(static_cast<size_t>(SliceScratchBytes(form, task)));
    for (const bool values : {false, true}) {
      uint16_t*& to = values ? task.v : task.k;
      to = here().Allocate<uint16_t>(kept[i].size() * static_cast<size_t>(dim));
      gathers.push_back({{kv, values, 0, 0, tokens}, here().In(kept[i]), std::ssize(kept[i]), to});
    }
    tasks.push_back(task);
  }
  here().backend().selection_units->gather_rows(here().stream(),
                                                {gathers.data(), std::ssize(gathers)});
  here().Run(&SliceKernels::encode_slices, {form, tasks.data(), std::ssize(tasks)});
  EXPECT_EQ(faults.Read(), std::vector<uint32_t>(kept.size(), 0));
  for (size_t i = 0; i < kept.size(); ++i) {
    TestSlice rows({std::ssize(kept[i]), 1, dim, 1, dim}, 0);
    std::vector<uint16_t> numbers;
    for (const bool values : {false, true}) {
      for (const int32_t row : kept[i]) {
        const uint16_t* from = values ? host.V(0, row) : host.K(0, row);
        numbers.insert(numbers.end(), from, from + dim);
      }
    }
    rows.Load(numbers.data());
    const std::vector<std::byte> want =
        testing::EncodeSlice(*codec_, rows, {3, tasks[i].first_position});
    std::vector<std::byte> got = out[i]->Read();
    if (IsCacheGen(form)) {
      ASSERT_EQ(sizes.Read()[i], want.size());
      got.resize(want.size());
    }
    EXPECT_EQ(got, want) << "unit " << i;
  }
}

std::string SliceCaseName(
    const ::testing::TestParamInfo<std::tuple<CodecCase, std::string>>& info) {
  std::string name = std::get<0>(info.param).Label() + "_" + std::get<1>(info.param);
  for (char& c : name) c = c == '-' ? '_' : c;
  return name;
}
INSTANTIATE_TEST_SUITE_P(All, SlicesTest,
                         ::testing::Combine(::testing::ValuesIn(testing::AllCases()),
                                            ::testing::ValuesIn(kernels::testing::BackendNames())),
                         SliceCaseName);

}  // namespace
}  // namespace cairn::codecs
