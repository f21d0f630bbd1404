#pragma once
// Peers' messages to and from their form on the wire. INVALID_ARGUMENT names the field, the value
// and what was expected.

#include "cairn/v1/peer.pb.h"
#include "services/cache/cluster/peer/peer_links.h"

namespace cairn::cache {

void ToProto(const PeerCaller& caller, v1::PeerCaller* out);
Result<PeerCaller> ToCaller(const v1::PeerCaller& caller);

void ToProto(const PeerHello& hello, v1::HelloRequest* out);
Result<PeerHello> ToHello(const v1::HelloRequest& hello);

void ToProto(const Announcement& message, v1::AnnounceRequest* out);
Announcement ToAnnouncement(const v1::AnnounceRequest& message);

void ToProto(const FoundHolders& found, v1::FindResponse* out);
Result<FoundHolders> ToFoundHolders(const v1::FindResponse& found, size_t waymarks);

void ToProto(const PeerMatch& match, v1::PeerMatchResponse* out);
PeerMatch ToPeerMatch(const v1::PeerMatchResponse& match);

void ToProto(const BumpPage& page, v1::BumpPage* out);
Result<BumpPage> ToBumpPage(const v1::BumpPage& page);

void ToProto(const SourceBlock& block, v1::PeerReadFrame::Block* out);
Result<SourceBlock> ToSourceBlock(const v1::PeerReadFrame::Block& block);

void ToProto(const LentPlace& place, v1::PeerReadFrame::Lent* out);
// `block` is what is lent.
Result<LentPlace> ToLentPlace(const v1::PeerReadFrame::Lent& lent, const SourceBlock& block);

}  // namespace cairn::cache
