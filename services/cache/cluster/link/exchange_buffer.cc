#include "services/cache/cluster/link/exchange_buffer.h"

#include <utility>

namespace cairn::cache {

struct ExchangeBuffer::Taken {
  ~Taken() {
    MutexLock lock(owner->mu_);
    owner->pages_.Release(page, pages);
  }
  std::shared_ptr<ExchangeBuffer> owner;
  uint32_t page = 0, pages = 0;
};

ExchangeBuffer::ExchangeBuffer(device::DeviceMemory memory, uint32_t half_pages)
    : memory_(std::move(memory)),
      half_pages_(half_pages),
      pages_({half_pages, half_pages}),
      out_pool_(pages_.AddPool()) {
  pages_.SetPool(1, out_pool_);
}

Result<std::shared_ptr<ExchangeBuffer>> ExchangeBuffer::Create(
    std::shared_ptr<device::Device> device, uint64_t bytes) {
  const auto half_pages = static_cast<uint32_t>(bytes / 2 / kPageBytes);
  if (half_pages == 0) {
    return InvalidArgument("link.buffer: got {} bytes, expected at least {}", bytes,
                           2 * kPageBytes);
  }
  // Exportable: what NCCL registers as a window has to be.
  CAIRN_ASSIGN_OR_RETURN(
      device::DeviceMemory memory,
      device->Allocate(2 * uint64_t{half_pages} * kPageBytes, device->info().exports));
  return std::shared_ptr<ExchangeBuffer>(new ExchangeBuffer(std::move(memory), half_pages));
}

Result<ExchangeBuffer::Room> ExchangeBuffer::Take(Half half, uint64_t bytes) {
  const uint64_t pages = (bytes + kPageBytes - 1) / kPageBytes;
  MutexLock lock(mu_);
  const auto page = pages > half_pages_ ? std::nullopt
                                        : pages_.Reserve(static_cast<uint32_t>(pages),
                                                         half == Half::kOut ? out_pool_ : 0);
  if (!page) {
    return Errorf(StatusCode::kResourceExhausted,
                  "link.buffer: no room for {} bytes in a half of {}", bytes,
                  half_pages_ * kPageBytes);
  }
  auto taken = std::make_shared<Taken>();
  taken->owner = shared_from_this();
  taken->page = *page;
  taken->pages = static_cast<uint32_t>(pages);
  return Room{*page * kPageBytes, bytes, std::move(taken)};
}

uint64_t ExchangeBuffer::used_bytes() const {
  MutexLock lock(mu_);
  return pages_.used_pages() * kPageBytes;
}

}  // namespace cairn::cache
