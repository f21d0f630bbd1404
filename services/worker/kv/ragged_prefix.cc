#include "services/worker/kv/ragged_prefix.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace cairn::worker {
namespace {

// Places for units in pages.
class UnitPlaces {
 public:
  explicit UnitPlaces(const KvLayout& kv)
      : kv_(kv),
        unit_bytes_(static_cast<size_t>(kv.ragged_unit_rows()) * kv.row_bytes()),
        units_per_head_(static_cast<size_t>(kv.block_tokens / kv.ragged_unit_rows())) {}

  size_t per_page() const {
    return units_per_head_ * static_cast<size_t>(kv_.kv_heads) * static_cast<size_t>(kv_.layers);
  }
  // Place `i` of a page.
  std::byte* At(std::byte* page, size_t i) const {
    const size_t head = i / units_per_head_;
    const auto heads = static_cast<size_t>(kv_.kv_heads);
    return page + head / heads * kv_.layer_bytes() + head % heads * kv_.head_bytes() +
           i % units_per_head_ * unit_bytes_;
  }
  // Number within its page of unit `unit` of a head's tokens.
  size_t Number(size_t head, size_t unit) const {
    return head * units_per_head_ + unit % units_per_head_;
  }
  size_t PageOf(size_t unit) const { return unit / units_per_head_; }
  void Copy(std::byte* to, const std::byte* from) const {
    std::memcpy(to, from, unit_bytes_);
    std::memcpy(to + kv_.plane_bytes(), from + kv_.plane_bytes(), unit_bytes_);
  }

 private:
  const KvLayout& kv_;
  const size_t unit_bytes_;
  const size_t units_per_head_;
};

}  // namespace

RaggedPrefix::RaggedPrefix(KvPool& pool, std::shared_ptr<const RaggedPrefix> parent)
    : pool_(&pool), parent_(std::move(parent)) {
  if (parent_ == nullptr) {
    heads_.resize(static_cast<size_t>(pool.layout().layers) *
                  static_cast<size_t>(pool.layout().kv_heads));
    return;
  }
  CAIRN_CHECK(parent_->pool_ == &pool && !parent_->extended_);
  parent_->extended_ = true;
  heads_ = parent_->heads_;
  free_units_ = parent_->free_units_;
}

RaggedPrefix::~RaggedPrefix() { pool_->Free(pages_); }

int64_t RaggedPrefix::rows() const {
  int64_t rows = 0;
  for (const Head& head : heads_) rows += head.rows;
  return rows;
}

int64_t RaggedPrefix::page_count() const {
  return std::ssize(pages_) + (parent_ == nullptr ? 0 : parent_->page_count());
}

std::byte* RaggedPrefix::RowAt(const Head& head, int64_t row) const {
  const int64_t unit_rows = layout().ragged_unit_rows();
  return const_cast<std::byte*>(head.units[static_cast<size_t>(row / unit_rows)]) +
         static_cast<size_t>(row % unit_rows) * layout().row_bytes();
}

void RaggedPrefix::CopyRows(int layer, int head, int64_t begin, int64_t count, uint16_t* k,
                            uint16_t* v) const {
  const Head& from = Of(layer, head);
  CAIRN_CHECK(begin >= 0 && count >= 0 && begin + count <= from.rows);
  const int64_t unit_rows = layout().ragged_unit_rows();
  const int64_t dim = layout().head_dim;
  for (int64_t done = 0; done < count;) {
    const int64_t row = begin + done;
    const int64_t run = std::min(count - done, unit_rows - row % unit_rows);
    const std::byte* at = RowAt(from, row);
    const size_t bytes = static_cast<size_t>(run) * layout().row_bytes();
    std::memcpy(k + done * dim, at, bytes);
    std::memcpy(v + done * dim, at + layout().plane_bytes(), bytes);
    done += run;
  }
}

std::shared_ptr<const RaggedPrefix> RaggedPrefix::Compact(
    KvPool& pool, std::shared_ptr<const RaggedPrefix> parent, std::vector<std::byte*> pages,
    int64_t end, const RowsOf& rows_of) {
  const KvLayout& kv = pool.layout();
  const UnitPlaces places(kv);
  const auto unit_rows = static_cast<size_t>(kv.ragged_unit_rows());
  const auto block = static_cast<size_t>(kv.block_tokens);
  std::shared_ptr<RaggedPrefix> made(new RaggedPrefix(pool, std::move(parent)));

  // 1. Each head's rows forward within its own tokens' places: what is written was read already.
  struct Unit {
    size_t page;
    size_t place;
  };
  std::vector<std::vector<Unit>> units(made->heads_.size());
  size_t used = 0;
  for (size_t h = 0; h < made->heads_.size(); ++h) {
    Head& head = made->heads_[h];
    const auto heads = static_cast<size_t>(kv.kv_heads);
    const size_t plane = h / heads * kv.layer_bytes() + h % heads * kv.head_bytes();
    const auto row_at = [&](size_t row) {
      return pages[row / block] + plane + row % block * kv.row_bytes();
    };
    size_t room = head.units.size() * unit_rows - static_cast<size_t>(head.rows);
    size_t packed = 0;
    for (const int32_t row : rows_of(static_cast<int>(h / heads), static_cast<int>(h % heads))) {
      std::byte* from = row_at(static_cast<size_t>(row));
      std::byte* to;
      if (room > 0) {
        --room;
        to = made->RowAt(head, head.rows++);
      } else {
        to = row_at(packed++);
      }
      if (to == from) continue;
      std::memcpy(to, from, kv.row_bytes());
      std::memcpy(to + kv.plane_bytes(), from + kv.plane_bytes(), kv.row_bytes());
    }
    head.rows += static_cast<int64_t>(packed);
    for (size_t unit = 0; unit * unit_rows < packed; ++unit, ++used) {
      units[h].push_back({places.PageOf(unit), places.Number(h, unit)});
    }
  }

  // 2. Units into as few pages as they fit in: the first ones, which hold most of them already.
  const size_t had_free = made->free_units_.size();
  const size_t wanted = used > had_free ? used - had_free : 0;
  const size_t kept = (wanted + places.per_page() - 1) / places.per_page();
  std::vector<bool> taken(kept * places.per_page(), false);
  for (const auto& of_head : units) {
    for (const Unit& unit : of_head) {
      if (unit.page < kept) taken[unit.page * places.per_page() + unit.place] = true;
    }
  }
  std::vector<std::byte*>& free = made->free_units_;
  for (size_t i = taken.size(); i-- > 0;) {
    if (!taken[i]) free.push_back(places.At(pages[i / places.per_page()], i % places.per_page()));
  }
  for (size_t h = 0; h < units.size(); ++h) {
    for (const Unit& unit : units[h]) {
      std::byte* at = places.At(pages[unit.page], unit.place);
      if (unit.page >= kept) {
        std::byte* to = free.back();
        free.pop_back();
        places.Copy(to, at);
        at = to;
      }
      made->heads_[h].units.push_back(at);
    }
  }
  pool.Release(std::span(pages).subspan(kept));
  pages.resize(kept);
  made->pages_ = std::move(pages);
  made->end_ = end;
  return made;
}

RaggedBuilder::RaggedBuilder(KvPool& pool, std::shared_ptr<const RaggedPrefix> parent)
    : prefix_(new RaggedPrefix(pool, std::move(parent))) {}

Status RaggedBuilder::Reserve(std::span<const int64_t> rows) {
  RaggedPrefix& p = *prefix_;
  CAIRN_CHECK(rows.size() == p.heads_.size());
  const UnitPlaces places(p.layout());
  const int64_t unit_rows = p.layout().ragged_unit_rows();
  std::vector<size_t> more(rows.size());
  size_t wanted = 0;
  for (size_t h = 0; h < rows.size(); ++h) {
    const int64_t units = (p.heads_[h].rows + rows[h] + unit_rows - 1) / unit_rows;
    more[h] = static_cast<size_t>(std::max<int64_t>(0, units - std::ssize(p.heads_[h].units)));
    wanted += more[h];
  }
  const size_t free = p.free_units_.size();
  const size_t pages =
      wanted > free ? (wanted - free + places.per_page() - 1) / places.per_page() : 0;
  const size_t had = p.pages_.size();
  CAIRN_RETURN_IF_ERROR(p.pool_->Allocate(static_cast<int64_t>(pages), &p.pages_));
  // Units are taken from the end: what is free already first, then the new pages from their start.
  std::vector<std::byte*> fresh;
  for (size_t page = p.pages_.size(); page-- > had;) {
    for (size_t i = places.per_page(); i-- > 0;) fresh.push_back(places.At(p.pages_[page], i));
  }
  p.free_units_.insert(p.free_units_.begin(), fresh.begin(), fresh.end());
  for (size_t h = 0; h < rows.size(); ++h) {
    for (size_t i = 0; i < more[h]; ++i) {
      p.heads_[h].units.push_back(p.free_units_.back());
      p.free_units_.pop_back();
    }
  }
  return OkStatus();
}

void RaggedBuilder::Append(int layer, int head, const uint16_t* k, const uint16_t* v,
                           int64_t count) {
  RaggedPrefix& p = *prefix_;
  RaggedPrefix::Head& to = p.heads_[p.Index(layer, head)];
  const int64_t unit_rows = p.layout().ragged_unit_rows();
  CAIRN_CHECK(to.rows + count <= std::ssize(to.units) * unit_rows);
  for (int64_t done = 0; done < count;) {
    const int64_t run = std::min(count - done, unit_rows - to.rows % unit_rows);
    std::byte* at = p.RowAt(to, to.rows);
    const size_t bytes = static_cast<size_t>(run) * p.layout().row_bytes();
    std::memcpy(at, k + done * p.layout().head_dim, bytes);
    std::memcpy(at + p.layout().plane_bytes(), v + done * p.layout().head_dim, bytes);
    to.rows += run;
    done += run;
  }
}

std::shared_ptr<const RaggedPrefix> RaggedBuilder::Finish(int64_t end) {
  prefix_->end_ = end;
  return std::move(prefix_);
}

}  // namespace cairn::worker
