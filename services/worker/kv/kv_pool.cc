#include "services/worker/kv/kv_pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "common/config/config.h"
#include "services/worker/kv/ragged_prefix.h"

namespace cairn::worker {
namespace {

Status CheckRange(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return OkStatus();
  return InvalidArgument("KV layout field '{}': got {}, expected {} to {}", field, value, low,
                         high);
}

uint64_t NewStamp() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

}  // namespace

KvSequence& KvSequence::operator=(KvSequence&& other) noexcept {
  if (this == &other) return *this;
  Clear();
  pool_ = std::exchange(other.pool_, nullptr);
  prefix_ = std::exchange(other.prefix_, nullptr);
  base_ = std::exchange(other.base_, 0);
  pages_ = std::move(other.pages_);
  other.pages_.clear();
  length_ = std::exchange(other.length_, 0);
  loans_ = std::exchange(other.loans_, {});
  return *this;
}

const KvLayout& KvSequence::layout() const {
  CAIRN_CHECK(pool_ != nullptr);
  return pool_->layout();
}

int64_t KvSequence::capacity() const {
  return pool_ == nullptr ? 0 : base_ + page_count() * pool_->layout().block_tokens;
}

Status KvSequence::Reserve(int64_t tokens) {
  CAIRN_CHECK(pool_ != nullptr);
  if (tokens <= capacity()) return OkStatus();
  const int64_t block = pool_->layout().block_tokens;
  CAIRN_RETURN_IF_ERROR(pool_->Allocate((tokens - capacity() + block - 1) / block, &pages_));
  loans_.resize(pages_.size());
  return OkStatus();
}

void KvSequence::SetLength(int64_t tokens) {
  CAIRN_CHECK(tokens >= base_ && tokens <= capacity());
  length_ = tokens;
}

void KvSequence::Truncate(int64_t tokens) {
  CAIRN_CHECK(tokens >= base_);
  if (pool_ == nullptr || tokens >= length_) return;
  const int64_t block = pool_->layout().block_tokens;
  const auto keep = static_cast<size_t>((tokens - base_ + block - 1) / block);
  for (size_t page = keep; page < pages_.size(); ++page) TakeBack(static_cast<int64_t>(page));
  pool_->Free(std::span(pages_).subspan(keep));
  pages_.resize(keep);
  loans_.resize(keep);
  length_ = tokens;
}

void KvSequence::Lend(int64_t page, const std::byte* base, std::shared_ptr<const PageLoan> loan) {
  CAIRN_CHECK(page >= 0 && page < page_count() && !lent(page));
  std::byte*& place = pages_[static_cast<size_t>(page)];
  Loan& lent_page = loans_[static_cast<size_t>(page)];
  lent_page.own = std::exchange(place, const_cast<std::byte*>(base));
  lent_page.loan = std::move(loan);
  // A pass that waits for this page later may ask for its stamp now. Whichever it gets, nothing has
  // the other one's bytes under it: the old stamp never comes back, and the new one begins here.
  std::atomic_ref(lent_page.stamp).store(0, std::memory_order_relaxed);
}

bool KvSequence::lent(int64_t page) const {
  return loans_[static_cast<size_t>(page)].own != nullptr;
}

int64_t KvSequence::lent_pages() const {
  return std::count_if(loans_.begin(), loans_.end(),
                       [](const Loan& loan) { return loan.own != nullptr; });
}

void KvSequence::TakeBack(int64_t page) {
  Loan& loan = loans_[static_cast<size_t>(page)];
  if (loan.own == nullptr) return;
  pages_[static_cast<size_t>(page)] = loan.own;
  loan = {};
}

bool KvSequence::CopyOut() {
  for (int64_t page = 0; page < page_count(); ++page) {
    if (!lent(page)) continue;
    std::memcpy(loans_[static_cast<size_t>(page)].own, pages_[static_cast<size_t>(page)],
                layout().page_bytes());
  }
  const bool intact = FirstBrokenLoan() == page_count();
  DropLoans();
  return intact;
}

void KvSequence::DropLoans() {
  for (int64_t page = 0; page < page_count(); ++page) TakeBack(page);
}

int64_t KvSequence::FirstBrokenLoan() const {
  const PageLoan* intact = nullptr;  // Pages in a row often share one loan.
  for (size_t page = 0; page < loans_.size(); ++page) {
    const PageLoan* loan = loans_[page].loan.get();
    if (loan == nullptr || loan == intact) continue;
    if (!loan->Intact()) return static_cast<int64_t>(page);
    intact = loan;
  }
  return page_count();
}

void KvSequence::Clear() {
  DropLoans();
  if (pool_ != nullptr) pool_->Free(pages_);
  pages_.clear();
  loans_.clear();
  prefix_ = nullptr;
  length_ = base_ = 0;
}

void KvSequence::StartAt(int64_t tokens) {
  CAIRN_CHECK(pool_ != nullptr && prefix_ == nullptr && length_ == base_ && tokens >= 0 &&
              tokens % pool_->layout().block_tokens == 0);
  length_ = base_ = tokens;
}

void KvSequence::DropFront(int64_t tokens) {
  CAIRN_CHECK(pool_ != nullptr && prefix_ == nullptr && lent_pages() == 0);
  const int64_t block = pool_->layout().block_tokens;
  CAIRN_CHECK(tokens >= base_ && tokens <= length_ && (tokens - base_) % block == 0);
  const auto pages = static_cast<ptrdiff_t>((tokens - base_) / block);
  // Their memory stays with the pool's working set: the next tokens take these pages.
  pool_->Free(std::span(pages_).first(static_cast<size_t>(pages)));
  pages_.erase(pages_.begin(), pages_.begin() + pages);
  loans_.erase(loans_.begin(), loans_.begin() + pages);
  base_ = tokens;
}

void KvSequence::SetPrefix(std::shared_ptr<const RaggedPrefix> prefix) {
  CAIRN_CHECK(pool_ != nullptr && length_ == base_);
  length_ = base_ = prefix == nullptr ? 0 : prefix->end();
  prefix_ = std::move(prefix);
}

void KvSequence::Compact(const std::function<std::vector<int32_t>(int, int)>& rows_of) {
  CAIRN_CHECK(pool_ != nullptr && lent_pages() == 0);
  const int64_t block = pool_->layout().block_tokens;
  const auto used = static_cast<ptrdiff_t>((length_ - base_ + block - 1) / block);
  std::vector<std::byte*> segment(pages_.begin(), pages_.begin() + used);
  pages_.erase(pages_.begin(), pages_.begin() + used);
  loans_.erase(loans_.begin(), loans_.begin() + used);
  prefix_ = RaggedPrefix::Compact(*pool_, std::move(prefix_), std::move(segment), length_, rows_of);
  base_ = length_;
}

void KvSequence::Publish(int64_t page, const Digest& name) {
  CAIRN_CHECK(page >= 0 && page < page_count() && !lent(page));
  pool_->Publish(pages_[static_cast<size_t>(page)], name, PageStamp(page));
}

uint64_t KvSequence::PageStamp(int64_t page) {
  CAIRN_CHECK(page >= 0 && page < page_count());
  const std::atomic_ref stamp(loans_[static_cast<size_t>(page)].stamp);
  uint64_t seen = stamp.load(std::memory_order_relaxed);
  if (seen != 0) return seen;
  const uint64_t fresh = NewStamp();
  return stamp.compare_exchange_strong(seen, fresh, std::memory_order_relaxed) ? fresh : seen;
}

bool KvSequence::Adopt(int64_t page, const Digest& name) {
  CAIRN_CHECK(page >= 0 && page < page_count() && !lent(page));
  const auto [adopted, stamp] = pool_->Hold(name);
  if (adopted == nullptr) return false;
  // Its own page may be that page: then the count is as before.
  std::byte* const own = std::exchange(pages_[static_cast<size_t>(page)], adopted);
  loans_[static_cast<size_t>(page)].stamp = stamp;
  pool_->Free({&own, 1});
  return true;
}

void KvSequence::Withdraw() {
  CAIRN_CHECK(pool_ != nullptr && lent_pages() == 0);
  pool_->Withdraw(pages_);
}

int64_t KvSequence::Published(std::span<const Digest> names) const {
  CAIRN_CHECK(pool_ != nullptr);
  return pool_->Published(names);
}

std::span<std::byte> KvSequence::LayerSlice(int64_t page, int layer) {
  const KvLayout& l = layout();
  CAIRN_CHECK(page >= 0 && page < page_count() && layer >= 0 && layer < l.layers && !lent(page));
  return {pages_[static_cast<size_t>(page)] + l.layer_bytes() * static_cast<size_t>(layer),
          l.layer_bytes()};
}

std::span<const std::byte> KvSequence::LayerSlice(int64_t page, int layer) const {
  const KvLayout& l = layout();
  CAIRN_CHECK(page >= 0 && page < page_count() && layer >= 0 && layer < l.layers);
  return {pages_[static_cast<size_t>(page)] + l.layer_bytes() * static_cast<size_t>(layer),
          l.layer_bytes()};
}

Result<std::unique_ptr<KvPool>> KvPool::Create(const KvLayout& layout, size_t bytes) {
  CAIRN_RETURN_IF_ERROR(CheckRange("layers", layout.layers, 1, 4096));
  CAIRN_RETURN_IF_ERROR(CheckRange("kv_heads", layout.kv_heads, 1, 4096));
  CAIRN_RETURN_IF_ERROR(CheckRange("head_dim", layout.head_dim, 1, 4096));
  CAIRN_RETURN_IF_ERROR(CheckRange("block_tokens", layout.block_tokens, 16, 256));
  const size_t pages = bytes / layout.page_bytes();
  if (pages == 0 || pages > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return InvalidArgument("kv_pool: got {}, expected room for 1 to 2^31 - 1 pages of {}",
                           config::FormatBytes(bytes), config::FormatBytes(layout.page_bytes()));
  }
  void* base = mmap(nullptr, pages * layout.page_bytes(), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    return Errorf(StatusCode::kResourceExhausted, "kv_pool: cannot map {} of memory: {}",
                  config::FormatBytes(bytes), std::strerror(errno));
  }
  return std::unique_ptr<KvPool>(
      new KvPool(layout, static_cast<std::byte*>(base), static_cast<int64_t>(pages)));
}

KvPool::KvPool(const KvLayout& layout, std::byte* base, int64_t total_pages)
    : layout_(layout),
      base_(base),
      total_pages_(total_pages),
      pages_(static_cast<size_t>(total_pages)) {
  free_.reserve(static_cast<size_t>(total_pages));
  for (int64_t i = total_pages; i-- > 0;) free_.push_back(static_cast<int32_t>(i));
}

KvPool::~KvPool() {
  {
    MutexLock lock(mu_);
    CAIRN_CHECK(static_cast<int64_t>(free_.size()) == total_pages_);
  }
  munmap(base_, static_cast<size_t>(total_pages_) * layout_.page_bytes());
}

int64_t KvPool::free_pages() const {
  MutexLock lock(mu_);
  return static_cast<int64_t>(free_.size());
}

Status KvPool::Allocate(int64_t count, std::vector<std::byte*>* pages) {
  MutexLock lock(mu_);
  if (count > static_cast<int64_t>(free_.size())) {
    return Errorf(StatusCode::kResourceExhausted,
                  "kv_pool: {} pages of {} tokens wanted, {} of {} free", count,
                  layout_.block_tokens, free_.size(), total_pages_);
  }
  for (int64_t i = 0; i < count; ++i) {
    pages->push_back(base_ + static_cast<size_t>(free_.back()) * layout_.page_bytes());
    pages_[static_cast<size_t>(free_.back())].holders = 1;
    free_.pop_back();
  }
  return OkStatus();
}

std::vector<int32_t> KvPool::LetGo(std::span<std::byte* const> pages) {
  std::vector<int32_t> unheld;
  for (const std::byte* address : pages) {
    const int32_t number = NumberOf(address);
    Page& page = pages_[static_cast<size_t>(number)];
    CAIRN_CHECK(page.holders > 0);
    if (--page.holders > 0) continue;
    if (page.name) published_.erase(*page.name);
    page.name.reset();
    unheld.push_back(number);
  }
  return unheld;
}

void KvPool::Free(std::span<std::byte* const> pages) {
  MutexLock lock(mu_);
  const std::vector<int32_t> unheld = LetGo(pages);
  // Last page first, so that the next sequence gets them in the same order.
  free_.insert(free_.end(), unheld.rbegin(), unheld.rend());
}

void KvPool::Publish(std::byte* page, const Digest& name, uint64_t stamp) {
  MutexLock lock(mu_);
  const int32_t number = NumberOf(page);
  Page& published = pages_[static_cast<size_t>(number)];
  if (published.name || !published_.emplace(name, number).second) return;
  published.name = name;
  published.stamp = stamp;
}

void KvPool::Withdraw(std::span<std::byte* const> pages) {
  MutexLock lock(mu_);
  for (const std::byte* address : pages) {
    Page& page = pages_[static_cast<size_t>(NumberOf(address))];
    if (page.holders > 1 || !page.name) continue;
    published_.erase(*page.name);
    page.name.reset();
  }
}

KvPool::Held KvPool::Hold(const Digest& name) {
  MutexLock lock(mu_);
  const auto found = published_.find(name);
  if (found == published_.end()) return {};
  Page& page = pages_[static_cast<size_t>(found->second)];
  ++page.holders;
  return {base_ + static_cast<size_t>(found->second) * layout_.page_bytes(), page.stamp};
}

int64_t KvPool::Published(std::span<const Digest> names) const {
  MutexLock lock(mu_);
  int64_t count = 0;
  for (const Digest& name : names) {
    if (!published_.contains(name)) break;
    ++count;
  }
  return count;
}

void KvPool::Release(std::span<std::byte* const> pages) {
  std::vector<int32_t> unheld;
  {
    MutexLock lock(mu_);
    unheld = LetGo(pages);
  }
  const size_t bytes = layout_.page_bytes();
  constexpr uintptr_t kSystemPage = 4096;
  for (const int32_t number : unheld) {
    const std::byte* const page = base_ + static_cast<size_t>(number) * bytes;
    // A system page that is shared with a neighbour stays.
    const uintptr_t begin =
        (reinterpret_cast<uintptr_t>(page) + kSystemPage - 1) & ~(kSystemPage - 1);
    const uintptr_t end = (reinterpret_cast<uintptr_t>(page) + bytes) & ~(kSystemPage - 1);
    // Fails only for arguments that are wrong; the memory would stay, then.
    if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
  MutexLock lock(mu_);
  free_.insert(free_.begin(), unheld.begin(), unheld.end());  // Taken last.
}

}  // namespace cairn::worker
