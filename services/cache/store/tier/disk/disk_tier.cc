#include "services/cache/store/tier/disk/disk_tier.h"

#include "services/cache/store/tier/disk/impl.h"

namespace cairn::cache {

Result<std::unique_ptr<DiskTier>> DiskTier::Open(const DiskTierOptions& options) {
  CAIRN_ASSIGN_OR_RETURN(std::unique_ptr<Impl> impl, Impl::Open(options));
  return std::unique_ptr<DiskTier>(new DiskTier(std::move(impl)));
}

DiskTier::DiskTier(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DiskTier::~DiskTier() = default;

Result<Extent> DiskTier::Reserve(uint32_t length) { return impl_->Reserve(length); }
void DiskTier::Release(const Extent& extent) { impl_->Release(extent); }
void DiskTier::Write(const Extent& extent, std::string_view record,
                     std::span<const std::byte> source, IoCallback done) {
  impl_->Write(extent, record, source, std::move(done));
}
void DiskTier::Read(const Extent& extent, std::span<std::byte> destination, IoCallback done) {
  impl_->Read(extent, destination, std::move(done));
}
void DiskTier::ReadRange(const Extent& extent, uint64_t offset, std::span<std::byte> destination,
                         IoCallback done) {
  impl_->ReadRange(extent, offset, destination, std::move(done));
}
uint32_t DiskTier::max_extent_bytes() const { return impl_->max_extent_bytes(); }
TierStats DiskTier::GetStats() const { return impl_->GetStats(); }
Status DiskTier::Recover(const RecoverVisitor& visitor) { return impl_->Recover(visitor); }
Status DiskTier::Flush(std::chrono::nanoseconds limit, const std::function<bool()>& cancelled) {
  return impl_->Flush(limit, cancelled);
}
Result<std::string> DiskTier::RecordOf(const Extent& extent) { return impl_->RecordOf(extent); }
VictimGroup DiskTier::NextVictims() { return impl_->NextVictims(); }
void DiskTier::SetDamageListener(DamageListener listener) {
  impl_->SetDamageListener(std::move(listener));
}
Status DiskTier::PutMeta(std::string_view name, std::string_view value) {
  return impl_->PutMeta(name, value);
}
Status DiskTier::DeleteMeta(std::string_view name) { return impl_->DeleteMeta(name); }
Status DiskTier::ListMeta(
    const std::function<void(std::string_view name, std::string_view value)>& visitor) {
  return impl_->ListMeta(visitor);
}
DiskTierStats DiskTier::GetDiskStats() const { return impl_->GetDiskStats(); }
const std::string& DiskTier::io_mode() const { return impl_->io_mode; }
const std::string& DiskTier::node_id() const { return impl_->directory.node_id(); }
uint64_t DiskTier::MapBytes() const { return impl_->MapBytes(); }
uint64_t DiskTier::memory_bytes() const { return impl_->memory_bytes(); }

}  // namespace cairn::cache
