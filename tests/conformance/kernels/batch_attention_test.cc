// Attention of batches, on every backend that has it, against the reference in double. The bound is
// that of weights in binary16 (11 bits) and results in bfloat16 (8 bits).

#include "tests/conformance/kernels/batch_kv.h"

namespace cairn::kernels {
namespace {

using testing::BackendCaseName;
using testing::BatchKv;
using testing::ExpectClose;
using testing::FloatsOfBfloat16;
using testing::FloatsOfHalves;
using testing::Guarded;
using testing::Halves;
using testing::kBfloat16Rounding;
using testing::SequenceShape;

// A head's sum of weighted values of deviation 1 has this absolute error.
constexpr double kWeightRounding = 1e-3;

batch::KvForm Form(int32_t dim, int32_t kv_heads, int32_t group, int32_t block_tokens = 64) {
  batch::KvForm form;
  form.kv_heads = kv_heads;
  form.group = group;
  form.head_dim = dim;
  form.block_tokens = block_tokens;
  return form;
}
std::string Describe(const batch::KvForm& f) {
  return "head " + std::to_string(f.head_dim) + ", group " + std::to_string(f.group) + ", block " +
         std::to_string(f.block_tokens);
}
int64_t Width(const batch::KvForm& f) { return int64_t{f.kv_heads} * f.group * f.head_dim; }
float Scale(const batch::KvForm& f) { return 1.0f / std::sqrt(static_cast<float>(f.head_dim)); }

class BatchAttentionTest : public testing::BatchTest {
 protected:
  // One row for each of the sequences `some`.
  std::vector<uint16_t> Decode(const BatchKv& kv, const std::vector<uint16_t>& q,
                               const std::vector<size_t>& some, int64_t spare_splits = 0) {
    const batch::KvForm& form = kv.form();
    const int64_t width = Width(form), stride = width + 8;
    const auto rows = std::ssize(some);
    std::vector<batch::SequenceKv> sequences;
    std::vector<uint16_t> queries;
    int64_t splits = 0;
    for (const size_t i : some) {
      sequences.push_back(kv.sequence(i));
      const auto from = q.begin() + static_cast<int64_t>(i) * width;
      queries.insert(queries.end(), from, from + width);
      splits = std::max(splits, batch::SplitsOf(0, kv.shape(i).tokens));
      for (const int64_t kept : kv.shape(i).kept) {
        splits = std::max(splits, batch::SplitsOf(kept, kv.shape(i).tokens));
      }
    }
    splits += spare_splits;
    Guarded<uint16_t> out(here(), rows * stride, uint16_t{77});
    Guarded<float> scratch(here(), batch::DecodeScratchFloats(rows, splits, form));
    here().Run(&batch::ForwardKernels::attend_decode,
               {form, here().In(sequences), here().In(queries), out.get(), rows, width, stride,
                splits, Scale(form), scratch.get()});
    std::vector<uint16_t> got;
    const std::vector<uint16_t> all = out.Read();
    for (int64_t r = 0; r < rows; ++r) {
      got.insert(got.end(), all.begin() + r * stride, all.begin() + r * stride + width);
      for (int64_t i = width; i < stride; ++i) {
        EXPECT_EQ(all[static_cast<size_t>(r * stride + i)], 77);
      }
    }
    return got;
  }

  // The two operations that take prompts, those of them that the backend has.
  enum class Entry { kPlain, kPooled };
  std::vector<Entry> Entries() {
    if (here().backend().batch_forward->attend_pooled_prompt == nullptr) return {Entry::kPlain};
    return {Entry::kPlain, Entry::kPooled};
  }

  struct Cut {
    int64_t first;
    int64_t rows;
  };
  // Rows of sequences, as chunks of one call. Row `first` of a sequence is that of its token
  // tokens - rows + first.
  std::vector<uint16_t> Prompt(const BatchKv& kv, const std::vector<int64_t>& rows,
                               const std::vector<uint16_t>& q,
                               const std::vector<std::vector<Cut>>& cuts, Entry entry) {
    const batch::KvForm& form = kv.form();
    const int64_t width = Width(form);
    std::vector<batch::PromptChunk> chunks;
    int64_t place = 0, most = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      for (const Cut& cut : cuts[i]) {
        batch::PromptChunk chunk{kv.sequence(i), place + cut.first, cut.rows};
        chunk.kv.tokens = kv.shape(i).tokens - rows[i] + cut.first;
        chunks.push_back(chunk);
        most = std::max(most, cut.rows);
      }
      place += rows[i];
    }
    Guarded<uint16_t> out(here(), place * width, uint16_t{77});
    const batch::PromptAttentionArgs args{
        form,  here().In(chunks), std::ssize(chunks), most, here().In(q), out.get(), width,
        width, Scale(form)};
    if (entry == Entry::kPlain) {
      here().Run(&batch::ForwardKernels::attend_prompt, args);
    } else {
      here().Run(&batch::ForwardKernels::attend_pooled_prompt, {args, kv.pool(), kv.pool_bytes()});
    }
    return out.Read();
  }
};

struct DecodeCase {
  batch::KvForm form;
  std::vector<SequenceShape> shapes;
};
std::vector<DecodeCase> DecodeCases() {
  return {
      {Form(64, 2, 3), {{1}, {17}, {512}, {513}, {100, {0, 40}}, {0, {33, 7}}}},
      {Form(128, 1, 8, 16), {{1100}, {63, {600}}}},
      {Form(64, 1, 17, 48), {{49}}},
      {Form(128, 2, 1, 256), {{257}, {5}}},
  };
}

TEST_P(BatchAttentionTest, DecodedRowsAreThoseOfTheReference) {
  for (const DecodeCase& c : DecodeCases()) {
    const BatchKv kv(here(), c.form, c.shapes, &rng());
    const int64_t width = Width(c.form);
    const std::vector<uint16_t> q = Halves(Random(std::ssize(c.shapes) * width));
    const std::vector<float> exact = FloatsOfHalves(q);
    std::vector<size_t> all(c.shapes.size());
    std::iota(all.begin(), all.end(), size_t{0});
    const std::vector<float> got = FloatsOfBfloat16(Decode(kv, q, all));
    for (size_t i = 0; i < all.size(); ++i) {
      const auto at = static_cast<int64_t>(i) * width;
      ExpectClose(kv.Attend(i, c.shapes[i].tokens, exact.data() + at, Scale(c.form)),
                  std::span(got).subspan(static_cast<size_t>(at), static_cast<size_t>(width)),
                  kBfloat16Rounding, kWeightRounding,
                  Describe(c.form) + ", sequence " + std::to_string(i));
    }
  }
}

TEST_P(BatchAttentionTest, ADecodedRowHasTheBitsThatItHasAlone) {
  const DecodeCase c = DecodeCases()[0];
  const BatchKv kv(here(), c.form, c.shapes, &rng());
  const int64_t width = Width(c.form);
  const std::vector<uint16_t> q = Halves(Random(std::ssize(c.shapes) * width));
  const std::vector<uint16_t> together = Decode(kv, q, {5, 3, 4, 0, 2, 1});
  std::vector<uint16_t> alone;
  for (const size_t i : {5, 3, 4, 0, 2, 1}) {
    const std::vector<uint16_t> row = Decode(kv, q, {i}, 1);
    alone.insert(alone.end(), row.begin(), row.end());
  }
  EXPECT_EQ(together, alone);
}

TEST_P(BatchAttentionTest, ARowWithoutKeysIsZero) {
  const BatchKv kv(here(), Form(64, 1, 2), {{0}, {3}}, &rng());
  const std::vector<uint16_t> got = Decode(kv, Halves(Random(2 * 128)), {0, 1});
  EXPECT_EQ(std::vector<uint16_t>(got.begin(), got.begin() + 128), std::vector<uint16_t>(128));
  EXPECT_NE(std::vector<uint16_t>(got.begin() + 128, got.end()), std::vector<uint16_t>(128));
}

TEST_P(BatchAttentionTest, HeadsOfOtherSizesAreRefused) {
  const BatchKv kv(here(), Form(80, 1, 1), {{1}}, &rng());
  const batch::ForwardKernels& table = *here().backend().batch_forward;
  batch::DecodeAttentionArgs decode{kv.form(), &kv.sequence(0), nullptr, nullptr, 1};
  batch::PromptChunk chunk{kv.sequence(0), 0, 1};
  batch::PromptAttentionArgs prompt{kv.form(), &chunk, 1, 1};
  EXPECT_NE(table.attend_decode(here().stream().native(), decode), 0);
  EXPECT_NE(table.attend_prompt(here().stream().native(), prompt), 0);
  if (table.attend_pooled_prompt == nullptr) return;
  EXPECT_NE(table.attend_pooled_prompt(here().stream().native(), {prompt, kv.pool(), 0}), 0);
}

struct PromptCase {
  batch::KvForm form;
  std::vector<SequenceShape> shapes;
  std::vector<int64_t> rows;
};
std::vector<PromptCase> PromptCases() {
  return {
      {Form(64, 2, 2), {{37}, {1}, {130, {70, 0}}}, {37, 1, 66}},
      {Form(128, 1, 2, 16), {{65}}, {65}},
      {Form(64, 1, 1, 48), {{200}}, {8}},
      {Form(128, 1, 1), {{140, {140}}}, {140}},
  };
}

TEST_P(BatchAttentionTest, RowsOfPromptsAreThoseOfTheReference) {
  for (const PromptCase& c : PromptCases()) {
    const BatchKv kv(here(), c.form, c.shapes, &rng());
    const int64_t width = Width(c.form);
    const int64_t all = std::accumulate(c.rows.begin(), c.rows.end(), int64_t{0});
    const std::vector<uint16_t> q = Halves(Random(all * width));
    const std::vector<float> exact = FloatsOfHalves(q);
    std::vector<float> want;
    std::vector<std::vector<Cut>> whole;
    for (size_t i = 0; i < c.rows.size(); ++i) {
      whole.push_back({{0, c.rows[i]}});
      for (int64_t r = 0; r < c.rows[i]; ++r) {
        const std::vector<float> row = kv.Attend(i, c.shapes[i].tokens - c.rows[i] + r + 1,
                                                 exact.data() + want.size(), Scale(c.form));
        want.insert(want.end(), row.begin(), row.end());
      }
    }
    for (const Entry entry : Entries()) {
      ExpectClose(want, FloatsOfBfloat16(Prompt(kv, c.rows, q, whole, entry)), kBfloat16Rounding,
                  kWeightRounding, Describe(c.form));
    }
  }
}

TEST_P(BatchAttentionTest, RowsOfPromptsHaveTheSameBitsHoweverAPromptIsCut) {
  const batch::KvForm form = Form(64, 1, 1, 16);
  const BatchKv kv(here(), form, {{150, {20}}}, &rng());
  const std::vector<uint16_t> q = Halves(Random(150 * Width(form)));
  for (const Entry entry : Entries()) {
    const std::vector<uint16_t> whole = Prompt(kv, {150}, q, {{{0, 150}}}, entry);
    EXPECT_EQ(Prompt(kv, {150}, q, {{{0, 64}, {64, 64}, {128, 22}}}, entry), whole);
    EXPECT_EQ(Prompt(kv, {150}, q, {{{0, 48}, {48, 1}, {49, 70}, {119, 31}}}, entry), whole);
  }
}

TEST_P(BatchAttentionTest, LargeScoresDoNotOverflow) {
  const batch::KvForm form = Form(64, 1, 2);
  const BatchKv kv(here(), form, {{80}}, &rng());
  const std::vector<uint16_t> q = Halves(Random(Width(form), 300.0f));
  const std::vector<float> exact = FloatsOfHalves(q);
  const std::vector<float> want = kv.Attend(0, 80, exact.data(), Scale(form));
  // Scores of some hundreds have absolute errors of some 2^-15, and so have their weights.
  ExpectClose(want, FloatsOfBfloat16(Decode(kv, q, {0})), kBfloat16Rounding, 3e-3, "decode");
  for (const Entry entry : Entries()) {
    ExpectClose(want, FloatsOfBfloat16(Prompt(kv, {1}, q, {{{0, 1}}}, entry)), kBfloat16Rounding,
                3e-3, "prompt");
  }
}

INSTANTIATE_TEST_SUITE_P(All, BatchAttentionTest, ::testing::ValuesIn(testing::BackendNames()),
                         BackendCaseName);

}  // namespace
}  // namespace cairn::kernels
