#include "services/cache/store/mover/copied_parts.h"

#include <algorithm>
#include <cstring>

namespace cairn::cache {

bool CopiedParts::AreLent(const Tiers& tiers, const Transfer& transfer) {
  return transfer.route.source == TierKind::kHost &&
         std::ranges::any_of(transfer.parts, [&tiers](const PartPlace& part) {
           return tiers.host->PlaceOf(part.extent[TierKind::kHost]).lending == Lending::kLent;
         });
}

Status CopiedParts::Prepare(const Work& work, Transfer& transfer, Counters* counters) {
  if (work.copy) CAIRN_RETURN_IF_ERROR(Copy(transfer));
  if (work.verify) CAIRN_RETURN_IF_ERROR(Verify(transfer));
  return work.recode ? Recode(work, transfer, counters) : OkStatus();
}

Status CopiedParts::Copy(Transfer& transfer) {
  for (std::span<const std::byte>& part : transfer.bytes) {
    CAIRN_ASSIGN_OR_RETURN(PartBuffer copy, PartBuffer::Of(part.size()));
    std::memcpy(copy.bytes().data(), part.data(), part.size());
    part = copies_.emplace_back(std::move(copy)).bytes();
  }
  return OkStatus();
}

Status CopiedParts::Verify(const Transfer& transfer) {
  const TierKind source = transfer.route.source;
  const PartForm& form = transfer.move.ns->storage().in_tier[source];
  for (size_t i = 0; i < transfer.parts.size(); ++i) {
    const PartPlace& part = transfer.parts[i];
    Status status = VerifyPartBytes(form, part.rect, transfer.bytes[i]);
    if (status.ok()) continue;
    bad_extent_ = part.extent[source];
    return status;
  }
  return OkStatus();
}

Status CopiedParts::Recode(const Work& work, Transfer& transfer, Counters* counters) {
  const TierKind source = transfer.route.source;
  const Recoder& recoder = *transfer.move.ns->storage().recoder;
  for (size_t i = 0; i < transfer.parts.size(); ++i) {
    const PartPlace& part = transfer.parts[i];
    auto recoded = recoder.Recode(part.rect, transfer.bytes[i], work.at_start, work.most_bytes);
    if (!recoded.ok()) {
      if (recoded.status().code() == StatusCode::kDataLoss) {
        bad_extent_ = part.extent[source];
      } else {
        unencodable_ = recoded.status().code() == StatusCode::kInvalidArgument;
      }
      return recoded.status();
    }
    if (!recoded->bytes().empty()) {
      counters->recoded_bytes_in.Add(part.bytes[source]);
      counters->recoded_bytes_out.Add(recoded->bytes().size());
      transfer.bytes[i] = recoded->bytes();
    }
    recoded_.push_back(*std::move(recoded));
  }
  return OkStatus();
}

void CopiedParts::Clear() {
  copies_.clear();
  recoded_.clear();
}

}  // namespace cairn::cache
