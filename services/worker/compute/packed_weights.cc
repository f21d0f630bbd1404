#include "services/worker/compute/packed_weights.h"

namespace cairn::worker {
namespace {

struct Job {
  const model::Tensor* tensor;
  kernels::PackedMatrix* packed;
  bool half_split;
};

void PackPanel(const Job& job, const model::Hyperparameters& hp, int64_t panel) {
  const std::byte* rows[kernels::kPanelRows];
  for (int64_t i = 0; i < kernels::kPanelRows; ++i) {
    const int64_t r = panel * kernels::kPanelRows + i;
    if (r >= job.tensor->rows) {
      rows[i] = nullptr;
    } else {
      rows[i] = job.tensor->row(job.half_split ? model::HalfSplitRow(hp, r) : r);
    }
  }
  job.packed->PackPanel(panel, rows);
}

}  // namespace

size_t PackedWeights::bytes() const {
  size_t sum = output.bytes();
  for (const PackedLayer& l : layers) {
    for (const kernels::PackedMatrix* m : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}) {
      sum += m->bytes();
    }
  }
  return sum;
}

PackedWeights PackWeights(const model::Model& model, kernels::ThreadPool* pool) {
  const model::Hyperparameters& hp = model.hp();
  PackedWeights w;
  w.layers.resize(static_cast<size_t>(hp.layers));
  std::vector<Job> jobs;
  const auto add = [&jobs](const model::Tensor& tensor, kernels::PackedMatrix* packed,
                           bool half_split) {
    *packed = kernels::PackedMatrix(tensor.type, tensor.rows, tensor.cols);
    jobs.push_back({&tensor, packed, half_split});
  };
  for (int i = 0; i < hp.layers; ++i) {
    const model::LayerWeights& from = model.layer(i);
    PackedLayer& to = w.layers[static_cast<size_t>(i)];
    to.attn_norm = model::FloatsOf(from.attn_norm);
    to.ffn_norm = model::FloatsOf(from.ffn_norm);
    add(from.q, &to.q, true);
    add(from.k, &to.k, true);
    add(from.v, &to.v, false);
    add(from.o, &to.o, false);
    add(from.gate, &to.gate, false);
    add(from.up, &to.up, false);
    add(from.down, &to.down, false);
  }
  w.output_norm = model::FloatsOf(model.output_norm());
  add(model.output(), &w.output, false);

  // Pieces of a few panels over all matrices: the last one is as short as the first.
  constexpr int64_t kPiece = 8;
  std::vector<std::pair<size_t, int64_t>> pieces;
  for (size_t j = 0; j < jobs.size(); ++j) {
    for (int64_t p = 0; p < jobs[j].packed->panels(); p += kPiece) pieces.emplace_back(j, p);
  }
  pool->ParallelFor(static_cast<int64_t>(pieces.size()), [&](int64_t i, int) {
    const auto [j, first] = pieces[static_cast<size_t>(i)];
    const int64_t end = std::min(first + kPiece, jobs[j].packed->panels());
    for (int64_t p = first; p < end; ++p) PackPanel(jobs[j], hp, p);
  });
  return w;
}

}  // namespace cairn::worker
